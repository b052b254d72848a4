// Nodes: which are alive, under which incarnation, and what each is told with its heartbeat.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

// How long a node that is gone is waited for by name.
constexpr absl::Duration kAwayAge = absl::Hours(24);

// Incarnations are nanoseconds since 1970, or one more than the one before: this leaves room after any of
// them.
constexpr uint64_t kIncarnationsEnd = uint64_t{1} << 63;

absl::Status CheckFacts(const NodeFacts& facts) {
  if (facts.node_id.empty() || facts.name.empty() || facts.incarnation == 0) {
    return absl::InvalidArgumentError("a node registers with a node id, a name and an incarnation above 0");
  }
  if (facts.incarnation >= kIncarnationsEnd) {
    return absl::InvalidArgumentError(absl::StrCat("node ", facts.node_id, " registers with the incarnation ",
                                                   facts.incarnation, ": they are below ", kIncarnationsEnd));
  }
  return Annotate(CheckLabels(facts.labels), absl::StrCat("node ", facts.name));
}

absl::Status Replaced(const NodeFacts& by, const NodeIdentity& node) {
  return absl::AbortedError(absl::StrCat("node ", node.node_id, " is the daemon ", by.name, " at ",
                                         by.grpc_address, " now (incarnation ", by.incarnation,
                                         "): it replaced this one (incarnation ", node.incarnation, ")"));
}

absl::Status NotRegistered(const NodeIdentity& node) {
  return absl::NotFoundError(absl::StrCat("node ", node.node_id, ", incarnation ", node.incarnation,
                                          ", is not registered: register it again"));
}

}  // namespace

absl::Status Directory::CheckName(const NodeFacts& facts) const {
  const auto named = live_names_.find(facts.name);
  if (named == live_names_.end() || named->second == facts.node_id) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("the name ", facts.name, " belongs to the live node ",
                                               named->second, " at ",
                                               nodes_.find(named->second)->second.facts.grpc_address,
                                               ": stop that one, or give this one another name"));
}

absl::Status Directory::CheckIdentity(const NodeIdentity& node) const {
  auto it = nodes_.find(node.node_id);
  if (it == nodes_.end()) return NotRegistered(node);
  const NodeFacts& facts = it->second.facts;
  if (node.incarnation == facts.incarnation) return absl::OkStatus();
  return node.incarnation < facts.incarnation ? Replaced(facts, node) : NotRegistered(node);
}

absl::StatusOr<Directory::NodeState*> Directory::FindLive(const NodeIdentity& node) {
  TC_RETURN_IF_ERROR(CheckIdentity(node));
  return &nodes_.find(node.node_id)->second;
}

absl::Status Directory::CheckRegistration(const NodeFacts& facts) const {
  TC_RETURN_IF_ERROR(CheckFacts(facts));
  const NodeIdentity id = {facts.node_id, facts.incarnation};
  absl::Status identity = CheckIdentity(id);
  if (absl::IsAborted(identity)) return identity;
  if (auto it = nodes_.find(facts.node_id);
      identity.ok() && it->second.facts.grpc_address != facts.grpc_address) {
    // Two processes on copies of one state folder, with incarnations equal by chance: the first stays.
    return Replaced(it->second.facts, id);
  }
  return CheckName(facts);
}

absl::Status Directory::CheckBinding(std::string_view node_id, std::string_view name) const {
  const auto bound = names_of_nodes_.find(node_id);
  if (bound == names_of_nodes_.end() || bound->second == name) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("node/", name, " may not speak for node ", bound->second, " (", node_id, "): that is for ",
                   bound->second, " itself; where it has another name now, an operator lets it have one: ",
                   "tensorcast node forget ", node_id));
}

absl::StatusOr<DurableFacts> Directory::PrepareBindNode(const NodeFacts& facts) const {
  TC_RETURN_IF_ERROR(CheckRegistration(facts));
  TC_RETURN_IF_ERROR(CheckBinding(facts.node_id, facts.name));
  DurableFacts binding;
  if (names_of_nodes_.contains(facts.node_id)) return binding;
  if (const auto bound = nodes_of_names_.find(facts.name); bound != nodes_of_names_.end()) {
    binding.nodes.push_back({.node_id = bound->second, .name = ""});
  }
  binding.nodes.push_back({.node_id = facts.node_id, .name = facts.name});
  return binding;
}

absl::StatusOr<DurableFacts> Directory::PrepareForgetNode(std::string_view node_id) const {
  const auto bound = names_of_nodes_.find(node_id);
  if (bound == names_of_nodes_.end()) {
    return absl::NotFoundError(absl::StrCat("no certificate's name has the node id ", node_id));
  }
  if (nodes_.contains(node_id)) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", bound->second, " (", node_id, ") is alive: stop its daemon first"));
  }
  return DurableFacts{.nodes = {{.node_id = std::string(node_id), .name = ""}}};
}

absl::StatusOr<Registration> Directory::RegisterNode(const NodeFacts& facts, std::vector<PoolFacts> pools,
                                                     SteadyTime now) {
  TC_RETURN_IF_ERROR(CheckRegistration(facts));
  // A higher incarnation: the process before it is gone, and with it what it held and its grants.
  if (absl::IsNotFound(CheckIdentity({facts.node_id, facts.incarnation}))) DropNode(facts.node_id, now);
  NodeState& node = nodes_[facts.node_id];
  SetFacts(node, facts);
  node.pools = std::move(pools);
  node.last_heartbeat = now;
  node.inventory_wanted = true;
  node.registered = now;
  node.reported = false;
  // The same incarnation may only be repeating a call with a lost answer: its running grants stay valid.
  if (node.grant_key.empty()) {
    node.grant_key = secrets_->NewGrantKey();
    node.grant_key_given = now;
  }
  NoteChanges(facts.node_id);
  return Registration{.grant_key = node.grant_key,
                      .grant_key_age = now - node.grant_key_given,
                      .liveness = TellLiveness(node)};
}

Liveness Directory::LivenessNow() const {
  return LivenessOf({.heartbeat_interval = options_.heartbeat_interval, .node_ttl = options_.node_ttl},
                    std::max(nodes_.size(), largest_fleet_));
}

void Directory::NoteFleet(SteadyTime now) {
  if (nodes_.size() < largest_fleet_ && now < largest_fleet_until_) return;
  largest_fleet_ = nodes_.size();
  largest_fleet_until_ = now + kFleetAge;
}

Liveness Directory::TellLiveness(NodeState& node) {
  const Liveness now = LivenessNow();
  node.ttl = std::max(node.told_ttl, now.node_ttl);
  node.told_ttl = now.node_ttl;
  return now;
}

// Receivers renew grants with their heartbeats, of which one may be lost.
absl::Duration Directory::GrantTtl() const {
  return std::max(options_.grant_ttl, 3 * LivenessNow().heartbeat_interval);
}

// With the indices that are made of them. None: it is about to go.
void Directory::SetFacts(NodeState& node, const NodeFacts& facts) {
  for (const auto& [replica_id, held] : node.replicas) LeaveSources(node, held);
  if (auto host = nodes_of_host_.find(node.end.host_id); host != nodes_of_host_.end()) {
    host->second.erase(node.facts.node_id);
    if (host->second.empty()) nodes_of_host_.erase(host);
  }
  live_names_.erase(node.facts.name);
  if (!facts.name.empty()) live_names_[facts.name] = facts.node_id;
  node.facts = facts;
  const auto label = [&](const char* name) {
    const auto found = facts.labels.find(name);
    return found == facts.labels.end() ? "" : found->second;
  };
  node.end = {.host_id = facts.host_id,
              .handle_socket = facts.handle_socket,
              .lanes = facts.lanes,
              .has_devices = !facts.devices.empty(),
              .rack = label(kRackLabel),
              .zone = label(kZoneLabel)};
  // Text that is not a number says nothing.
  if (!absl::SimpleAtoi(label(kLinkLabel), &node.end.link_mbit)) node.end.link_mbit = 0;
  if (!facts.host_id.empty()) nodes_of_host_[facts.host_id].insert(facts.node_id);
  for (auto& [replica_id, held] : node.replicas) JoinSources(node, held);
}

// Grants first, while both ends can still be told; then what it had is noted as away, then its replicas leave
// the indices.
void Directory::DropNode(std::string_view node_id, SteadyTime now) {
  auto it = nodes_.find(node_id);
  if (it == nodes_.end()) return;
  NodeState& node = it->second;
  std::vector<std::string> ending;
  for (const auto* grants : {&node.serving, &node.receiving}) {
    for (const Grant* grant : *grants) ending.push_back(grant->grant_id);
  }
  EndGrants(ending, GrantEnd::kExpired, now);
  NoteAway(node, /*only_disk=*/false, now);
  while (!node.replicas.empty()) RemoveReplica(node, node.replicas.begin()->first, now);
  ReleaseTasks(node_id);
  LeaveGroups(node_id);
  SetFacts(node, {});
  const std::string gone = it->first;
  nodes_.erase(it);
  NoteChanges(gone);
}

absl::StatusOr<HeartbeatReply> Directory::Heartbeat(const NodeIdentity& identity,
                                                    std::vector<PoolFacts> pools,
                                                    const std::vector<std::string>& active_grants,
                                                    uint64_t inventory_sequence, SteadyTime now) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  node->last_heartbeat = now;
  node->pools = std::move(pools);
  if (node->reported) away_.erase(identity.node_id);
  for (const std::string& grant_id : active_grants) {
    auto grant = grants_.find(grant_id);
    if (grant != grants_.end() && grant->second.receiver_node == identity.node_id) {
      grant->second.expires = now + GrantTtl();
    }
  }
  // A heartbeat may overtake the update that it names, so only what the one before named is missed.
  if (node->sequence < node->reported_sequence) node->inventory_wanted = true;
  node->reported_sequence = inventory_sequence;

  HeartbeatReply reply;
  reply.grant_key_age = now - node->grant_key_given;
  reply.liveness = TellLiveness(*node);
  reply.inventory_wanted = node->inventory_wanted;
  for (const auto& [grant_id, until] : node->revoked) reply.revoked_grants.push_back(grant_id);
  reply.forgotten_artifacts = ForgottenOn(*node);
  if (node->draining) reply.evict_replicas = EvictableOn(*node);
  return reply;
}

absl::Status Directory::DrainNode(std::string_view node_id, bool draining) {
  auto it = nodes_.find(node_id);
  if (it == nodes_.end()) return absl::NotFoundError(absl::StrCat("there is no live node ", node_id));
  it->second.draining = draining;
  NoteChanges(node_id);
  return absl::OkStatus();
}

absl::Status Directory::SetUnreachable(const NodeIdentity& identity, bool unreachable) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  node->unreachable = unreachable;
  return absl::OkStatus();
}

absl::Status Directory::SetUnhealthyDevices(const NodeIdentity& identity, std::vector<int> devices) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  node->facts.unhealthy_devices = std::move(devices);
  return absl::OkStatus();
}

NodeView Directory::ViewOf(const NodeState& node, SteadyTime now) const {
  return NodeView{.facts = node.facts,
                  .draining = node.draining,
                  .unreachable = node.unreachable,
                  .pools = node.pools,
                  .since_heartbeat = std::max(now - node.last_heartbeat, absl::ZeroDuration())};
}

absl::StatusOr<NodeView> Directory::FindNode(std::string_view node_id, SteadyTime now) const {
  auto it = nodes_.find(node_id);
  if (it == nodes_.end()) return absl::NotFoundError(absl::StrCat("there is no live node ", node_id));
  return ViewOf(it->second, now);
}

std::vector<NodeView> Directory::Tick(SteadyTime now) {
  NoteFleet(now);
  std::vector<NodeView> silent;
  // A longer one holds at once for all: it costs a node nothing.
  const absl::Duration ttl = LivenessNow().node_ttl;
  for (auto& [node_id, node] : nodes_) {
    // Collected first: dropping a node changes the map.
    if (now - node.last_heartbeat > std::max(node.ttl, ttl)) silent.push_back(ViewOf(node, now));
    absl::erase_if(node.revoked, [&](const auto& entry) { return entry.second < now; });
  }
  for (const NodeView& node : silent) DropNode(node.facts.node_id, now);
  std::vector<std::string> expired;
  for (const auto& [grant_id, grant] : grants_) {
    if (grant.expires < now) expired.push_back(grant_id);
  }
  EndGrants(expired, GrantEnd::kExpired, now);
  ExpireGroups(now);
  absl::erase_if(beginning_, [&](auto& entry) {
    std::erase_if(entry.second, [&](const auto& node) { return node.second <= now; });
    return entry.second.empty();
  });
  absl::erase_if(waiting_, [&](auto& entry) {
    std::erase_if(entry.second, [&](const auto& node) {
      return node.second.until <= now && !FillsAt(entry.first, node.first);
    });
    return entry.second.empty();
  });
  absl::erase_if(away_, [&](const auto& entry) { return now - entry.second.since > kAwayAge; });
  return silent;
}

// The times by which silent nodes and their grants would end move by the gap, and so do those by which nodes
// from before the start are awaited.
void Directory::ExtendLiveness(absl::Duration gap) {
  awaited_until_ += gap;
  releases_from_ += gap;
  for (auto& [node_id, node] : nodes_) {
    node.last_heartbeat += gap;
    for (auto& [grant_id, until] : node.revoked) until += gap;
  }
  for (auto& [grant_id, grant] : grants_) grant.expires += gap;
}

DirectoryCounts Directory::counts() const {
  uint64_t open_tasks = 0;
  for (const auto& [node_id, tasks] : open_tasks_) open_tasks += tasks.size();
  return {.nodes = nodes_.size(),
          .artifacts = artifacts_.size(),
          .keys = live_keys_,
          .replicas = replicas_,
          .active_grants = grants_.size(),
          .open_tasks = open_tasks};
}

std::map<std::pair<LocationKind, ReplicaState>, uint64_t> Directory::CountReplicas() const {
  std::map<std::pair<LocationKind, ReplicaState>, uint64_t> counts;
  for (const auto& [id, node] : nodes_) {
    for (const auto& [replica_id, held] : node.replicas) {
      ++counts[{held.facts.location.kind, held.facts.state}];
    }
  }
  return counts;
}

}  // namespace tensorcast::global_store
