// Followers of keys, and version groups, as methods of Client.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "client/versions.h"
#include "python/src/connection.h"
#include "python/src/messages.h"
#include "rpc/convert/convert.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

using Text = const std::string&;
// Pairs of a node, its name or id, and a location.
using Places = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<client::VersionsClient::Targets> TargetsOf(const Places& places) {
  client::VersionsClient::Targets targets;
  for (const auto& [node, location] : places) {
    TC_ASSIGN_OR_RETURN(const Location parsed, Location::Parse(location));
    targets.emplace_back(node, parsed);
  }
  return targets;
}

absl::StatusOr<v1::LostMember> PolicyOf(Text on_lost) {
  if (on_lost == "wait") return v1::LOST_MEMBER_WAIT;
  if (on_lost == "fail") return v1::LOST_MEMBER_FAIL;
  if (on_lost == "drop") return v1::LOST_MEMBER_DROP;
  return absl::InvalidArgumentError("join a group: on_lost is \"" + on_lost + "\"; pass wait, fail or drop");
}

template <class T>
absl::StatusOr<Maker> MadeMessage(absl::StatusOr<T> result) {
  return Made(std::move(result), [](const T& message) { return DictOf(message); });
}

// A method that starts `work(caller, versions, arguments...)`.
template <class... Arguments, class Work>
auto VersionsMethod(Work work) {
  return Method<Arguments...>(
      [work](const Caller& to, const Arguments&... arguments) -> absl::StatusOr<Maker> {
        TC_ASSIGN_OR_RETURN(client::VersionsClient* const versions,
                            to.connection->Versions(to.context.cancellation));
        return work(to, *versions, arguments...);
      });
}

using Version = std::pair<uint64_t, std::string>;

}  // namespace

void BindVersions(nb::class_<Client>& type) {
  type.def("follow_key",
           VersionsMethod<std::string, Places>([](const Caller& to, client::VersionsClient& versions,
                                                  Text key, const Places& places) -> absl::StatusOr<Maker> {
             TC_ASSIGN_OR_RETURN(const client::VersionsClient::Targets targets, TargetsOf(places));
             return MadeMessage(versions.FollowKey(to.context, key, targets));
           }),
           nb::arg("key"), nb::arg("places"), nb::kw_only(), nb::arg("options"),
           "FollowKeyResponse of proto/versions.proto. A place is a pair of a node and a location.");
  type.def("list_followers",
           VersionsMethod<std::string>([](const Caller& to, client::VersionsClient& versions, Text key) {
             return MadeMessage(versions.ListFollowers(to.context, key));
           }),
           nb::arg("key"), nb::kw_only(), nb::arg("options"),
           "ListFollowersResponse of proto/versions.proto. Empty key: of all keys.");
  type.def("unfollow_key",
           VersionsMethod<std::string, Places>([](const Caller& to, client::VersionsClient& versions,
                                                  Text key, const Places& places) -> absl::StatusOr<Maker> {
             TC_ASSIGN_OR_RETURN(const client::VersionsClient::Targets targets, TargetsOf(places));
             return MadeMessage(versions.UnfollowKey(to.context, key, targets));
           }),
           nb::arg("key"), nb::arg("places"), nb::kw_only(), nb::arg("options"),
           "UnfollowKeyResponse of proto/versions.proto. No places: all places.");
  type.def("agree_on_version",
           VersionsMethod<std::pair<std::string, std::string>, std::pair<std::string, std::string>, uint32_t,
                          std::string, double, Version, uint64_t, uint64_t, bool>(
               [](const Caller& to, client::VersionsClient& versions,
                  const std::pair<std::string, std::string>& group,
                  const std::pair<std::string, std::string>& member, uint32_t size, Text on_lost,
                  double lost_after, const Version& prepared, uint64_t preparing, uint64_t known,
                  bool leaves) -> absl::StatusOr<Maker> {
                 v1::AgreeOnVersionRequest request;
                 request.set_key(group.first);
                 request.set_group(group.second);
                 request.set_size(size);
                 TC_ASSIGN_OR_RETURN(const v1::LostMember policy, PolicyOf(on_lost));
                 request.set_on_lost(policy);
                 *request.mutable_lost_after() = rpc::ToProto(absl::Seconds(lost_after));
                 request.set_member(member.first);
                 request.set_instance(member.second);
                 // Revisions count from 1: 0 says that nothing is prepared yet.
                 if (prepared.first != 0) {
                   request.mutable_prepared()->set_revision(prepared.first);
                   request.mutable_prepared()->set_artifact_id(prepared.second);
                 }
                 request.set_preparing_revision(preparing);
                 request.set_known_revision(known);
                 request.set_leaves(leaves);
                 return MadeMessage(versions.AgreeOnVersion(to.context, request));
               }),
           nb::arg("group"), nb::arg("member"), nb::kw_only(), nb::arg("size"), nb::arg("on_lost"),
           nb::arg("lost_after"), nb::arg("prepared"), nb::arg("preparing"), nb::arg("known"),
           nb::arg("leaves"), nb::arg("options"),
           "One poll: AgreeOnVersionResponse of proto/versions.proto. `group` is a key and a name, `member` "
           "a name "
           "and an instance, `prepared` a revision and an artifact id.");
}

}  // namespace tensorcast::python
