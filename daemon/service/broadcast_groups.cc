#include "daemon/service/broadcast_groups.h"

#include <optional>
#include <utility>

#include "absl/log/log.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kGivingUp = absl::Seconds(2);  // for the call that tells it
// This pause lies between questions to a global store that does not answer.
constexpr absl::Duration kAskAgain = absl::Milliseconds(200);

class GlobalStoreMeeting final : public BroadcastMeeting {
 public:
  GlobalStoreMeeting(std::string node_name, GlobalStoreClient* global_store, const GlobalStoreLink* link)
      : node_name_(std::move(node_name)), global_store_(global_store), link_(link) {}

  absl::StatusOr<WideRoot> Meet(const RequestContext& context, const WideGroupPlan& plan,
                                const std::optional<WideRoot>& root) override {
    v1::JoinBroadcastRequest request = RequestFor(plan);
    if (root.has_value()) {
      request.mutable_root()->set_communicator_id(root->communicator_id);
      request.mutable_root()->set_rank(root->rank);
      request.mutable_root()->set_node_name(node_name_);
      request.mutable_root()->set_replica_id(root->replica_id);
      if (root->made_by.IsValid()) request.mutable_root()->set_traceparent(root->made_by.ToTraceparent());
    }
    // Asks again until all nodes of the group have come, the group is over, or the context ends.
    // Repeating the request is harmless: the store counts a node once.
    while (true) {
      absl::Duration pause = kAskAgain;
      const absl::StatusOr<v1::JoinBroadcastResponse> met =
          global_store_->JoinBroadcast(context.Child(), request);
      if (met.ok() && met->has_root()) return FromProto(met->root());
      // A global store that restarts knows of no group.
      if (!met.ok() && !absl::IsUnavailable(met.status())) return met.status();
      if (met.ok()) pause = rpc::FromProto(met->retry_after());
      TC_RETURN_IF_ERROR(rpc::SleepFor(context, pause, "wait for the other nodes of a broadcast"));
    }
  }

  void GiveUp(const WideGroupPlan& plan, const absl::Status& why) override {
    v1::JoinBroadcastRequest request = RequestFor(plan);
    *request.mutable_error() = rpc::ToProto(why);
    // The others notice without it, if later.
    global_store_->JoinBroadcast(RequestContext::Background(kGivingUp), request).IgnoreError();
  }

 private:
  v1::JoinBroadcastRequest RequestFor(const WideGroupPlan& plan) const {
    v1::JoinBroadcastRequest request;
    *request.mutable_node() = link_->identity();
    request.set_group_id(plan.group_id);
    return request;
  }

  static WideRoot FromProto(const v1::JoinBroadcastRequest::Root& root) {
    return {.communicator_id = root.communicator_id(),
            .rank = root.rank(),
            .node_name = root.node_name(),
            .replica_id = root.replica_id(),
            .made_by = TraceContext::FromTraceparent(root.traceparent()).value_or(TraceContext())};
  }

  const std::string node_name_;
  GlobalStoreClient* const global_store_;
  const GlobalStoreLink* const link_;
};

absl::StatusOr<WideGroupPlan> PlanOf(const v1::BroadcastGroup& group) {
  WideGroupPlan plan{.group_id = group.group_id(),
                     .artifact_id = group.artifact_id(),
                     .world_size = group.world_size(),
                     .has_root = group.has_root(),
                     .forms_until = SteadyNow() + rpc::FromProto(group.forming())};
  for (const v1::BroadcastGroup::Rank& rank : group.ranks()) {
    TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(rank.location()));
    plan.ranks.push_back({.rank = rank.rank(), .location = location});
  }
  return plan;
}

}  // namespace

BroadcastGroups::BroadcastGroups(Options options)
    : options_(std::move(options)),
      meeting_(
          std::make_shared<GlobalStoreMeeting>(options_.node_name, options_.global_store, options_.link)) {}

absl::StatusOr<std::string> BroadcastGroups::Version() const {
  // NCCL knows no certificates, so it runs only where every process on the network is trusted.
  if (!options_.trusted_fabric) {
    return absl::FailedPreconditionError(
        "security.trusted_fabric is off, and NCCL has no authentication; if every host of the network is "
        "trusted, set security.trusted_fabric: true");
  }
  if (options_.broadcaster == nullptr) {
    return absl::UnavailableError(
        "the node has no GPU, or daemon.nccl is off; choose another node, or set daemon.nccl");
  }
  return options_.broadcaster->version();
}

// Every heartbeat carries this, as the store keeps what it was told last.
void BroadcastGroups::Report(v1::HeartbeatRequest* heartbeat) const {
  const absl::StatusOr<std::string> version = Version();
  if (version.ok()) heartbeat->set_nccl_version(*version);
  if (!version.ok()) heartbeat->set_no_nccl(std::string(version.status().message()));
}

void BroadcastGroups::Answered(const v1::HeartbeatResponse& response) {
  std::set<std::string> named;
  for (const v1::BroadcastGroup& group : response.groups()) {
    named.insert(group.group_id());
    // The store names a group in every answer while it forms; this node begins it once.
    if (begun_.contains(group.group_id())) continue;
    absl::StatusOr<WideGroupPlan> plan = PlanOf(group);
    if (!plan.ok()) {
      LOG(WARNING) << "skip group " << group.group_id() << " of the global store: " << plan.status();
      continue;
    }
    plan->meeting = meeting_;
    LOG(INFO) << "artifact " << plan->artifact_id << " is to be broadcast to " << plan->world_size
              << " GPUs, " << plan->ranks.size() << " of them here, as group " << plan->group_id;
    options_.engine->BeginBroadcast(*plan);
  }
  // A group that is not named any more has formed or is over, and its id does not come back.
  begun_ = std::move(named);
}

}  // namespace tensorcast::daemon
