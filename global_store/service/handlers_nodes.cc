#include <set>
#include <string_view>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/service/convert.h"
#include "global_store/service/daemon_calls.h"
#include "global_store/service/handlers.h"
#include "global_store/service/node_check.h"
#include "global_store/service/speaker.h"
#include "otel/api/metrics_catalogue.h"
#include "rpc/convert/convert.h"
#include "security/name.h"

// What nodes say about themselves, and what operators do with nodes. Nearly all of it is soft state, changed
// in one visit to the directory. Durable are only the binding of a node id to the name in a certificate
// (RegisterNode), its end and the end of the node's followers (ForgetNode), and the release of a version with
// its last replica (RequestEviction).
namespace tensorcast::global_store {
namespace {

// The directory, which keeps no log, says what a heartbeat showed.
void NoteConservation(const Conservation& shown) {
  const auto add = [](std::string_view what, uint64_t compared, uint64_t violations) {
    const auto& checks = otel::metrics::kConservationChecks;
    if (compared > violations) checks.Add(compared - violations, {what, "ok"});
    if (violations > 0) checks.Add(violations, {what, "violated"});
  };
  add("inventory", shown.inventories, shown.inventory_violations);
  add("grant", shown.grants, shown.grant_violations);
  for (const std::string& violation : shown.found) {
    LOG(WARNING) << "conservation violated: " << violation
                 << "; send the output of `tensorcast debug bundle` with a report of this defect";
  }
}

}  // namespace

absl::StatusOr<v1::RegisterNodeResponse> Handlers::RegisterNode(std::string_view peer,
                                                                const v1::RegisterNodeRequest& request) {
  TC_RETURN_IF_ERROR(CheckNodeDescription(request.node()));
  TC_RETURN_IF_ERROR(CheckSpeaksFor(coordinator_, peer, request.node().node_id()));
  // With certificates a node is called as its certificate says, since sources and receivers check each other
  // by that name.
  if (!peer.empty()) {
    TC_ASSIGN_OR_RETURN(const security::Name name, security::ParseName(peer));
    if (request.node().name() != name.name) {
      return absl::PermissionDeniedError(
          absl::StrCat("permission denied: ", peer, " may not register as ", request.node().name(),
                       "; set daemon.name to ", name.name, ", or remove daemon.name from the configuration"));
    }
  }
  if (!options_.own_host_only && IsUnixAddress(request.node().grpc_address())) {
    return absl::InvalidArgumentError(
        absl::StrCat("register node ", request.node().name(), ": the address ", request.node().grpc_address(),
                     " can be reached only on the node's own host, and this global store serves other hosts, "
                     "too; set daemon.listen of the node to host:port"));
  }
  TC_ASSIGN_OR_RETURN(std::vector<PoolFacts> pools, FromProto(request.node().pools()));
  const NodeFacts facts = FromProto(request.node());
  if (!peer.empty()) {
    // Of a registration that would be refused nothing is kept; where the id is bound, nothing is written.
    TC_RETURN_IF_ERROR(coordinator_
                           .Mutate("",
                                   [&](const Directory& directory, absl::Time) -> absl::StatusOr<Change> {
                                     TC_ASSIGN_OR_RETURN(DurableFacts binding,
                                                         directory.membership().PrepareBindNode(facts));
                                     return Change{.facts = std::move(binding)};
                                   })
                           .status());
  }
  // Only after the binding is durable: another node could take the id of one that is registered and not
  // bound.
  TC_ASSIGN_OR_RETURN(Registration registration,
                      coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
                        return directory.RegisterNode(facts, std::move(pools), now);
                      }));
  v1::RegisterNodeResponse response;
  response.set_grant_key(registration.grant_key);
  *response.mutable_grant_key_age() = rpc::ToProto(registration.grant_key_age);
  *response.mutable_heartbeat_interval() = rpc::ToProto(registration.liveness.heartbeat_interval);
  *response.mutable_node_ttl() = rpc::ToProto(registration.liveness.node_ttl);
  response.set_store_epoch(coordinator_.epoch());
  response.set_cluster_id(coordinator_.cluster_id());
  return response;
}

// All of it in one visit to the directory, so that the answer fits the state that the report made. It writes
// nothing durable itself: no heartbeat waits for the metadata store.
absl::StatusOr<v1::HeartbeatResponse> Handlers::Heartbeat(const RequestContext&,
                                                          const v1::HeartbeatRequest& request) {
  TC_ASSIGN_OR_RETURN(std::vector<PoolFacts> pools, FromProto(request.pools()));
  const std::vector<TaskReport> reports = FromProto(request.tasks());
  std::vector<TaskRecord> tasks;
  std::vector<NodeGroup> groups;
  const std::vector<std::string> active(request.active_grants().begin(), request.active_grants().end());
  HeldByNode held{.inventory_digest = std::nullopt,
                  .served_grants = {request.served_grants().begin(), request.served_grants().end()}};
  if (request.has_inventory_digest()) held.inventory_digest = request.inventory_digest();
  TC_ASSIGN_OR_RETURN(
      HeartbeatReply reply,
      coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) -> absl::StatusOr<HeartbeatReply> {
        // SetUnreachable refuses a node that is unknown or was replaced, before anything of its report is
        // noted.
        const NodeIdentity node = FromProto(request.node());
        TC_RETURN_IF_ERROR(directory.membership().SetUnreachable(node, request.unreachable()));
        TC_RETURN_IF_ERROR(directory.membership().SetUnhealthyDevices(
            node, {request.unhealthy_devices().begin(), request.unhealthy_devices().end()}));
        // Reports come before Take: an attempt that has just ended is not handed out again.
        TC_RETURN_IF_ERROR(directory.tasks().Note(node, reports));
        TC_ASSIGN_OR_RETURN(tasks, directory.tasks().Take(node, now));
        directory.membership().SetBroadcasts(node.node_id,
                                             {.nccl_version = ExplanationOf(request.nccl_version()),
                                              .why_not = ExplanationOf(request.no_nccl())});
        groups = directory.tasks().groups().Of(node.node_id, now);
        return directory.Heartbeat(node, std::move(pools), active, request.inventory_sequence(), now, held);
      }));
  NoteConservation(reply.conservation);
  v1::HeartbeatResponse response;
  response.set_store_epoch(coordinator_.epoch());
  response.set_inventory_wanted(reply.inventory_wanted);
  *response.mutable_grant_key_age() = rpc::ToProto(reply.grant_key_age);
  *response.mutable_heartbeat_interval() = rpc::ToProto(reply.liveness.heartbeat_interval);
  *response.mutable_node_ttl() = rpc::ToProto(reply.liveness.node_ttl);
  response.mutable_revoked_grants()->Assign(reply.revoked_grants.begin(), reply.revoked_grants.end());
  response.mutable_forgotten_artifacts()->Assign(reply.forgotten_artifacts.begin(),
                                                 reply.forgotten_artifacts.end());
  response.mutable_evict_replicas()->Assign(reply.evict_replicas.begin(), reply.evict_replicas.end());
  for (TaskRecord& task : tasks) *response.add_tasks() = ToProto(TaskView{.record = std::move(task)});
  for (const NodeGroup& group : groups) *response.add_groups() = ToProto(group);
  return response;
}

absl::StatusOr<v1::UpdateReplicasResponse> Handlers::UpdateReplicas(
    const RequestContext&, const v1::UpdateReplicasRequest& request) {
  const std::vector<ReplicaInfo> replicas = FromProto(request.replicas());
  TC_ASSIGN_OR_RETURN(
      const bool wanted, coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
        return directory.UpdateReplicas(FromProto(request.node()), request.sequence(), replicas, now);
      }));
  v1::UpdateReplicasResponse response;
  response.set_inventory_wanted(wanted);
  return response;
}

// The node is checked before a stream of many messages: one that is unknown or was replaced need not send
// them.
absl::Status Handlers::CheckNode(const v1::NodeIdentity& node) {
  return coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
    return directory.membership().CheckIdentity(FromProto(node));
  });
}

absl::Status Handlers::Inventory::Add(const v1::ReconcileInventoryRequest& message) {
  if (!node.has_value()) {
    node = FromProto(message.node());
    sequence = message.sequence();
  }
  std::vector<ReplicaInfo> more = FromProto(message.replicas());
  std::move(more.begin(), more.end(), std::back_inserter(replicas));
  return absl::OkStatus();
}

absl::StatusOr<v1::ReconcileInventoryResponse> Handlers::ReconcileInventory(const Inventory& inventory) {
  if (!inventory.node.has_value()) {
    return absl::InvalidArgumentError(
        "report an inventory: the stream has no message; name the node in the first message");
  }
  TC_ASSIGN_OR_RETURN(const std::vector<std::string> unknown,
                      coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
                        return directory.ReconcileInventory(*inventory.node, inventory.sequence,
                                                            inventory.replicas, now);
                      }));
  v1::ReconcileInventoryResponse response;
  response.mutable_unknown_artifacts()->Assign(unknown.begin(), unknown.end());
  return response;
}

absl::StatusOr<v1::RequestEvictionResponse> Handlers::RequestEviction(
    const RequestContext& context, const v1::RequestEvictionRequest& request) {
  const NodeIdentity node = FromProto(request.node());
  // The node kept the replica after all: it counts as a copy again.
  if (request.withdraw()) {
    TC_RETURN_IF_ERROR(coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
      return directory.evictions().Withdraw(node, request.replica_id());
    }));
    return v1::RequestEvictionResponse();
  }
  TC_ASSIGN_OR_RETURN(const EvictionDecision decision, DecideEviction(context, node, request.replica_id()));
  v1::RequestEvictionResponse response;
  response.set_granted(decision.granted);
  response.set_reason(decision.reason);
  response.set_waiting_for(decision.waiting_for);
  return response;
}

// One that is intact is enough, and the others are not waited for then.
bool Handlers::CheckOrigins(const RequestContext& context, const std::vector<OriginToCheck>& origins) {
  const std::vector<std::optional<OriginReport>> reports =
      AskForOrigins(context, origins, options_.credentials);
  return coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
    bool intact = false;
    for (size_t i = 0; i < reports.size(); ++i) {
      if (!reports[i].has_value()) continue;
      const OriginToCheck& checked = origins[i];
      directory.NoteOrigin(checked.artifact_id, checked.origin, reports[i]->finding, reports[i]->reason, now);
      intact |=
          reports[i]->finding == OriginFinding::kIntact || reports[i]->finding == OriginFinding::kComparing;
    }
    return intact;
  });
}

absl::StatusOr<v1::DrainNodeResponse> Handlers::DrainNode(const RequestContext&,
                                                          const v1::DrainNodeRequest& request) {
  TC_RETURN_IF_ERROR(coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
    return directory.DrainNode(request.node_id(), request.draining());
  }));
  return v1::DrainNodeResponse();
}

absl::StatusOr<v1::ForgetNodeResponse> Handlers::ForgetNode(const RequestContext& context,
                                                            const v1::ForgetNodeRequest& request) {
  return Mutate<v1::ForgetNodeResponse>(
      context, "ForgetNode", request.SerializeAsString(),
      [&](const Directory& directory, absl::Time) -> absl::StatusOr<Plan<v1::ForgetNodeResponse>> {
        // What the node was to follow goes with it. A node without a certificate has nothing else to forget.
        UnfollowPlan followers = directory.followers().PrepareForget(request.node_id());
        absl::StatusOr<DurableFacts> bound = directory.membership().PrepareForgetNode(request.node_id());
        const bool follows_alone = absl::IsNotFound(bound.status()) && !followers.facts.empty() &&
                                   directory.membership().Find(request.node_id()) == nullptr;
        DurableFacts facts;
        if (!follows_alone) {
          TC_ASSIGN_OR_RETURN(facts, std::move(bound));
        }
        facts.followers = std::move(followers.facts.followers);
        return Plan<v1::ForgetNodeResponse>{.change = {.facts = std::move(facts)}};
      });
}

absl::StatusOr<v1::GetClusterStatusResponse> Handlers::GetClusterStatus(
    const RequestContext& context, const v1::GetClusterStatusRequest& request) {
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("get the cluster status: the page size is ", request.page_size(),
                     "; give a positive number, or 0 for pages without a max number of nodes"));
  }
  PageBounds bounds{.bytes = kPageBytes};
  if (request.page_size() > 0) bounds.entries = static_cast<size_t>(request.page_size());
  const std::set<std::string, std::less<>> names(request.node_names().begin(), request.node_names().end());
  NodePage page;
  Conservation conservation;
  const DirectoryCounts counts = coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
    conservation = directory.conservation();
    page = names.empty() ? ListNodes(directory.membership(), request.page_token(), bounds, now)
                         : FindNodesNamed(directory.membership(), names, request.page_token(), bounds, now);
    return directory.counts();
  });
  v1::GetClusterStatusResponse response;
  for (const NodeView& node : page.nodes) *response.add_nodes() = ToProto(node);
  response.set_next_page_token(page.next);
  response.set_artifacts(counts.artifacts);
  response.set_keys(counts.keys);
  response.set_replicas(counts.replicas);
  response.set_active_grants(counts.active_grants);
  response.set_open_tasks(counts.open_tasks);
  response.set_conservation_compared(conservation.inventories + conservation.grants);
  response.set_conservation_violations(conservation.inventory_violations + conservation.grant_violations);
  if (!conservation.found.empty()) response.set_last_violation(conservation.found.back());
  response.set_differences(counts.differences);
  response.set_difference_bytes(counts.difference_bytes);
  response.set_store_epoch(coordinator_.epoch());
  response.set_metadata_store(std::string(coordinator_.metadata_store_name()));
  // A request by names looks for addresses; the pages that follow the first only bring more nodes.
  const bool whole = names.empty() && request.page_token().empty();
  if (whole && options_.describe_stores != nullptr) options_.describe_stores(context, response);
  return response;
}

}  // namespace tensorcast::global_store
