// What operators do with a store: its status, its artifacts and replicas, tasks, as methods of Client.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "python/src/connection.h"
#include "python/src/messages.h"
#include "rpc/convert/convert.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

using Text = const std::string&;

// A method that starts `work(caller, admin, arguments...)`. The connection for administration is made on the
// call's thread, so a daemon that does not answer holds up neither Python nor the connection for transfers.
template <class... Arguments, class Work>
auto AdminMethod(Work work) {
  return Method<Arguments...>(
      [work](const Caller& to, const Arguments&... arguments) -> absl::StatusOr<Maker> {
        TC_ASSIGN_OR_RETURN(client::AdminClient* const admin, to.connection->Admin(to.context.cancellation));
        return work(to, *admin, arguments...);
      });
}

// An administrative call that returns one message or several.
template <class T>
absl::StatusOr<Maker> MadeMessage(absl::StatusOr<T> result) {
  return Made(std::move(result), [](const T& message) { return DictOf(message); });
}
template <class T>
absl::StatusOr<Maker> MadeMessages(absl::StatusOr<std::vector<T>> result) {
  return Made(std::move(result), [](const std::vector<T>& messages) { return ListOf(messages, DictOf); });
}

using Targets = std::vector<std::pair<std::string, std::string>>;

// A node's name may stand in the field of its id: the store takes either.
template <class Request>
absl::Status AddTargets(const Targets& targets, Request& request) {
  for (const auto& [node, location] : targets) {
    TC_ASSIGN_OR_RETURN(const Location parsed, Location::Parse(location));
    auto& target = *request.add_targets();
    target.set_node_id(node);
    *target.mutable_location() = rpc::ToProto(parsed);
  }
  return absl::OkStatus();
}

void BindReplicas(nb::class_<Client>& type) {
  // Every argument is given by the Python package, which has the defaults.
  type.def("status", AdminMethod<>([](const Caller& to, client::AdminClient& admin) {
             return MadeMessage(admin.GetStatus(to.context));
           }),
           nb::kw_only(), nb::arg("options"), "GetStatusResponse of proto/daemon.proto, as a dictionary.");
  type.def("cluster_status", AdminMethod<>([](const Caller& to, client::AdminClient& admin) {
             return MadeMessage(admin.GetClusterStatus(to.context));
           }),
           nb::kw_only(), nb::arg("options"), "GetClusterStatusResponse of proto/global_store.proto.");
  type.def(
      "list_artifacts",
      AdminMethod<bool, double, bool>([](const Caller& to, client::AdminClient& admin, bool unkeyed_only,
                                         double min_age, bool replicas) {
        return MadeMessages(admin.ListArtifacts(to.context, unkeyed_only, absl::Seconds(min_age), replicas));
      }),
      nb::kw_only(), nb::arg("unkeyed_only"), nb::arg("min_age"), nb::arg("replicas"), nb::arg("options"),
      "Artifacts of proto/types.proto with the number of replicas; with the list of replicas on request.");
  type.def("list_replicas",
           AdminMethod<std::string>([](const Caller& to, client::AdminClient& admin, Text artifact_id) {
             return MadeMessages(admin.ListReplicas(to.context, artifact_id));
           }),
           nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"),
           "Replicas of this node, of one artifact; empty: of all artifacts.");
  type.def("delete_artifact",
           AdminMethod<std::string>([](const Caller& to, client::AdminClient& admin, Text artifact_id) {
             return Made(admin.DeleteArtifact(to.context, artifact_id));
           }),
           nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"));
  type.def("collect_archives",
           AdminMethod<double>([](const Caller& to, client::AdminClient& admin, double min_age) {
             return MadeMessage(admin.CollectArchives(to.context, absl::Seconds(min_age), /*dry_run=*/false));
           }),
           nb::kw_only(), nb::arg("min_age"), nb::arg("options"),
           "CollectArchivesResponse of proto/daemon.proto, as a dictionary.");
  type.def("evict_replica",
           AdminMethod<std::string, bool>(
               [](const Caller& to, client::AdminClient& admin, Text replica_id, bool force) {
                 return Made(admin.EvictReplica(to.context, replica_id, force));
               }),
           nb::arg("replica_id"), nb::kw_only(), nb::arg("force"), nb::arg("options"));
  type.def("set_pinned", Method<std::string, bool>([](const Caller& to, Text replica_id, bool pinned) {
             return Made(to.plain().SetPinned(to.context, replica_id, pinned));
           }),
           nb::arg("replica_id"), nb::arg("pinned"), nb::kw_only(), nb::arg("options"));
  type.def("explain_transfer",
           AdminMethod<std::string>([](const Caller& to, client::AdminClient& admin, Text transfer_id) {
             return MadeMessage(admin.ExplainTransfer(to.context, transfer_id));
           }),
           nb::arg("transfer_id"), nb::kw_only(), nb::arg("options"),
           "ExplainTransferResponse of proto/daemon.proto.");
}

void BindTasks(nb::class_<Client>& type) {
  type.def("replicate",
           AdminMethod<std::string, Targets, std::string>([](const Caller& to, client::AdminClient& admin,
                                                             Text artifact_id, const Targets& targets,
                                                             Text lane) -> absl::StatusOr<Maker> {
             v1::ReplicateArtifactRequest request;
             request.set_artifact_id(artifact_id);
             request.set_lane(lane);
             TC_RETURN_IF_ERROR(AddTargets(targets, request));
             return MadeMessage(admin.Replicate(to.context, request));
           }),
           nb::arg("artifact_id"), nb::arg("targets"), nb::kw_only(), nb::arg("lane"), nb::arg("options"),
           "Targets are pairs of a node (its name or id) and a location.");
  type.def("list_replication_tasks",
           AdminMethod<std::string>([](const Caller& to, client::AdminClient& admin, Text artifact_id) {
             return Made(admin.ListReplicationTasks(to.context, artifact_id),
                         [](const v1::ListReplicationTasksResponse& listed) {
                           return ListOf(listed.tasks(), DictOf);
                         });
           }),
           nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"));
  type.def("watch_replication_tasks",
           AdminMethod<std::string>([](const Caller& to, client::AdminClient& admin, Text artifact_id) {
             // The answer is kept as a copy of the message: it becomes a dictionary when the caller takes it,
             // with the GIL.
             return Made(admin.WatchReplicationTasks(
                 to.context, artifact_id, [&](const v1::WatchReplicationTasksResponse& news) {
                   to.listener.OnNews([news] { return nb::object(DictOf(news)); });
                   return true;
                 }));
           }),
           nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"),
           "A call with news: each is a WatchReplicationTasksResponse of proto/global_store.proto.");
  type.def(
      "cancel_replication_tasks",
      AdminMethod<std::string, Targets>([](const Caller& to, client::AdminClient& admin, Text artifact_id,
                                           const Targets& targets) -> absl::StatusOr<Maker> {
        v1::CancelReplicationTasksRequest request;
        request.set_artifact_id(artifact_id);
        TC_RETURN_IF_ERROR(AddTargets(targets, request));
        return MadeMessage(admin.CancelReplicationTasks(to.context, request));
      }),
      nb::arg("artifact_id"), nb::arg("targets"), nb::kw_only(), nb::arg("options"));
}

}  // namespace

void BindAdministration(nb::class_<Client>& type) {
  BindReplicas(type);
  BindTasks(type);
}

}  // namespace tensorcast::python
