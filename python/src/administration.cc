#include "python/src/administration.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "python/src/messages.h"
#include "rpc/convert/convert.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

// What the work of a call is given.
struct Administration {
  client::AdminClient& client;
  const RequestContext& context;
  const Call::Listener& listener;
};

// A method that starts `work(administration, arguments...)`.
template <class... Arguments, class Work>
auto Method(Work work) {
  return [work](const Client& client, Arguments... arguments, const CallOptions& options) {
    return Start(client, options,
                 [=](Connection& connection, const RequestContext& context,
                     const Call::Listener& listener) -> absl::StatusOr<Maker> {
                   TC_ASSIGN_OR_RETURN(client::AdminClient* const admin,
                                       connection.Admin(context.cancellation));
                   return work(Administration{*admin, context, listener}, arguments...);
                 });
  };
}

// A call of the administration that results in one message or several.
template <class T>
absl::StatusOr<Maker> MadeMessage(absl::StatusOr<T> result) {
  return Made(std::move(result), [](const T& message) { return DictOf(message); });
}
template <class T>
absl::StatusOr<Maker> MadeMessages(absl::StatusOr<std::vector<T>> result) {
  return Made(std::move(result), [](const std::vector<T>& messages) {
    nb::list made;
    for (const T& message : messages) made.append(DictOf(message));
    return made;
  });
}

using Targets = std::vector<std::pair<std::string, std::string>>;

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
  using Text = const std::string&;
  type.def("status",
           Method<>([](const Administration& to) { return MadeMessage(to.client.GetStatus(to.context)); }),
           nb::kw_only(), nb::arg("options"), "GetStatusResponse of proto/daemon.proto, as a dictionary.");
  type.def("cluster_status", Method<>([](const Administration& to) {
             return MadeMessage(to.client.GetClusterStatus(to.context));
           }),
           nb::kw_only(), nb::arg("options"), "GetClusterStatusResponse of proto/global_store.proto.");
  type.def("list_artifacts",
           Method<bool, double, bool>(
               [](const Administration& to, bool unkeyed_only, double min_age, bool replicas) {
                 return MadeMessages(
                     to.client.ListArtifacts(to.context, unkeyed_only, absl::Seconds(min_age), replicas));
               }),
           nb::kw_only(), nb::arg("unkeyed_only"), nb::arg("min_age"), nb::arg("replicas"),
           nb::arg("options"),
           "Artifacts of proto/types.proto; their replicas are counted, and listed if that is asked for.");
  type.def("list_replicas", Method<std::string>([](const Administration& to, Text artifact_id) {
             return MadeMessages(to.client.ListReplicas(to.context, artifact_id));
           }),
           nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"),
           "Replicas of this node; empty: of all.");
  type.def("delete_artifact", Method<std::string>([](const Administration& to, Text artifact_id) {
             return Made(to.client.DeleteArtifact(to.context, artifact_id));
           }),
           nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"));
  type.def("evict_replica",
           Method<std::string, bool>([](const Administration& to, Text replica_id, bool force) {
             return Made(to.client.EvictReplica(to.context, replica_id, force));
           }),
           nb::arg("replica_id"), nb::kw_only(), nb::arg("force"), nb::arg("options"));
  type.def(
      "set_pinned",
      [](const Client& client, const std::string& replica_id, bool pinned, const CallOptions& options) {
        return Start(client, options,
                     [=](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(connection.plain().SetPinned(context, replica_id, pinned));
                     });
      },
      nb::arg("replica_id"), nb::arg("pinned"), nb::kw_only(), nb::arg("options"));
  type.def("explain_transfer", Method<std::string>([](const Administration& to, Text transfer_id) {
             return MadeMessage(to.client.ExplainTransfer(to.context, transfer_id));
           }),
           nb::arg("transfer_id"), nb::kw_only(), nb::arg("options"),
           "ExplainTransferResponse of proto/daemon.proto.");
}

void BindTasks(nb::class_<Client>& type) {
  using Text = const std::string&;
  type.def("replicate",
           Method<std::string, Targets, std::string>([](const Administration& to, Text artifact_id,
                                                        const Targets& targets,
                                                        Text lane) -> absl::StatusOr<Maker> {
             v1::ReplicateArtifactRequest request;
             request.set_artifact_id(artifact_id);
             request.set_lane(lane);
             TC_RETURN_IF_ERROR(AddTargets(targets, request));
             return MadeMessage(to.client.Replicate(to.context, request));
           }),
           nb::arg("artifact_id"), nb::arg("targets"), nb::kw_only(), nb::arg("lane"), nb::arg("options"),
           "Targets are pairs of a node (its name or id) and a location.");
  type.def("list_replication_tasks", Method<std::string>([](const Administration& to, Text artifact_id) {
             return Made(to.client.ListReplicationTasks(to.context, artifact_id),
                         [](const v1::ListReplicationTasksResponse& listed) {
                           nb::list made;
                           for (const v1::ReplicationTask& task : listed.tasks()) made.append(DictOf(task));
                           return made;
                         });
           }),
           nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"));
  type.def("watch_replication_tasks", Method<std::string>([](const Administration& to, Text artifact_id) {
             return Made(to.client.WatchReplicationTasks(
                 to.context, artifact_id, [&](const v1::WatchReplicationTasksResponse& news) {
                   to.listener.OnNews([news] { return nb::object(DictOf(news)); });
                   return true;
                 }));
           }),
           nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"),
           "A call with news: each is a WatchReplicationTasksResponse of proto/global_store.proto.");
  type.def("cancel_replication_tasks",
           Method<std::string, Targets>([](const Administration& to, Text artifact_id,
                                           const Targets& targets) -> absl::StatusOr<Maker> {
             v1::CancelReplicationTasksRequest request;
             request.set_artifact_id(artifact_id);
             TC_RETURN_IF_ERROR(AddTargets(targets, request));
             return MadeMessage(to.client.CancelReplicationTasks(to.context, request));
           }),
           nb::arg("artifact_id"), nb::arg("targets"), nb::kw_only(), nb::arg("options"));
}

}  // namespace

void BindAdministration(nb::class_<Client>& type) {
  BindReplicas(type);
  BindTasks(type);
}

}  // namespace tensorcast::python
