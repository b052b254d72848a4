// Replicas: what each node says it holds, in sequence, and which of them may go.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

bool Removes(ReplicaState state) { return state == ReplicaState::kGone || state == ReplicaState::kFailed; }

}  // namespace

absl::Status Directory::ValidateReplica(const NodeState& node, const ReplicaInfo& replica) const {
  constexpr size_t kMaxIdBytes = 128;
  for (const std::string* id : {&replica.id, &replica.artifact_id}) {
    if (id->size() <= kMaxIdBytes && IsPrintable(*id)) continue;
    return absl::InvalidArgumentError(absl::StrCat("node ", node.facts.node_id, " reports the id ",
                                                   QuoteName(*id), ", which is too long or not printable"));
  }
  if (replica.id.empty()) return absl::InvalidArgumentError("a replica has no id");
  if (!replica.node_id.empty() && replica.node_id != node.facts.node_id) {
    return absl::InvalidArgumentError(absl::StrCat("node ", node.facts.node_id, " reports replica ",
                                                   replica.id, " of node ", replica.node_id));
  }
  if (replica.state == ReplicaState::kReady && replica.artifact_id.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("replica ", replica.id, " is ready, but names no artifact"));
  }
  return absl::OkStatus();
}

std::vector<ReplicaInfo> Directory::ValidReplicas(const NodeState& node,
                                                  const std::vector<ReplicaInfo>& replicas) const {
  std::vector<ReplicaInfo> valid;
  for (const ReplicaInfo& replica : replicas) {
    if (ValidateReplica(node, replica).ok()) valid.push_back(replica);
  }
  return valid;
}

bool Directory::Names(const std::vector<std::string>& names, const ReplicaInfo& replica) {
  return std::ranges::any_of(names, [&](std::string_view name) {
    if (name == replica.id) return true;
    return absl::ConsumePrefix(&name, replica.node_id) && absl::ConsumePrefix(&name, "/") &&
           name == replica.id;
  });
}

void Directory::PutReplica(NodeState& node, const ReplicaInfo& replica) {
  const auto [at, fresh] = node.replicas.try_emplace(replica.id);
  if (fresh) ++replicas_;
  HeldReplica& held = at->second;
  LeaveSources(node, held);
  if (!held.facts.artifact_id.empty() && held.facts.artifact_id != replica.artifact_id) {
    auto holders = holders_.find(held.facts.artifact_id);
    holders->second.erase({node.facts.node_id, replica.id});
    if (holders->second.empty()) holders_.erase(holders);
  }
  // It fills again: as if it were a new one, but for what it has.
  if (held.IsPartial() && replica.state != ReplicaState::kPartial) {
    held.looks = 0;
    held.hostmates_until = SteadyTime::InfiniteFuture();
  }
  held.facts = replica;  // `evicting` and `corrupt` stay: they go with the replica's id
  held.facts.node_id = node.facts.node_id;
  if (!replica.artifact_id.empty()) holders_[replica.artifact_id].emplace(node.facts.node_id, replica.id);
  JoinSources(node, held);
}

std::vector<std::string> Directory::ScopesOf(std::string_view artifact_id, const LaneEnd& end) {
  std::vector<std::string> scopes;
  if (!end.rack.empty()) scopes.push_back(absl::StrCat(artifact_id, "\nrack ", end.zone, "\n", end.rack));
  if (!end.zone.empty()) scopes.push_back(absl::StrCat(artifact_id, "\nzone ", end.zone));
  scopes.emplace_back(artifact_id);
  return scopes;
}

// FNV-1a, then mixed, since similar ids differ in few of its bits.
uint64_t Directory::Spread(std::string_view text) {
  uint64_t hash = 14695981039346656037U;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15U;
  return hash ^ (hash >> 29);
}

Directory::SourceSet::key_type Directory::KeyOf(const ReplicaInfo& replica) {
  return {Spread(replica.id), absl::StrCat(replica.id, "/", replica.node_id)};
}

void Directory::LeaveSources(const NodeState& node, const HeldReplica& replica) {
  if (!replica.CanServe()) return;
  const SourceSet::key_type key = KeyOf(replica.facts);
  for (const std::string& scope : ScopesOf(replica.facts.artifact_id, node.end)) {
    auto sources = sources_.find(scope);
    (replica.IsSource() ? sources->second.ready : sources->second.filling).erase(key);
    if (sources->second.ready.empty() && sources->second.filling.empty()) sources_.erase(sources);
  }
}

void Directory::JoinSources(NodeState& node, HeldReplica& replica) {
  if (!replica.CanServe()) return;
  const SourceSet::key_type key = KeyOf(replica.facts);
  for (const std::string& scope : ScopesOf(replica.facts.artifact_id, node.end)) {
    SourcesOfScope& sources = sources_[scope];
    (replica.IsSource() ? sources.ready : sources.filling)[key] = {&node, &replica};
  }
}

void Directory::RemoveReplica(NodeState& node, const std::string& id, SteadyTime now) {
  auto held = node.replicas.find(id);
  if (held == node.replicas.end()) return;
  const std::string& replica_id = held->first;  // `id` may live in an entry that goes before this one
  if (auto holders = holders_.find(held->second.facts.artifact_id); holders != holders_.end()) {
    holders->second.erase({node.facts.node_id, replica_id});
    if (holders->second.empty()) holders_.erase(holders);
  }
  std::vector<std::string> ending;
  for (const Grant* grant : node.serving) {
    if (grant->replica_id == replica_id) ending.push_back(grant->grant_id);
  }
  EndGrants(ending, GrantEnd::kRevoked, now);
  LeaveSources(node, held->second);
  --replicas_;
  node.replicas.erase(held);
}

void Directory::NoteAway(const NodeState& node, bool only_disk, SteadyTime now) {
  AwayNode away{.name = node.facts.name, .since = now, .artifacts = {}};
  for (const auto& [replica_id, held] : node.replicas) {
    if (only_disk && held.facts.location.kind != LocationKind::kDisk) continue;
    if (held.IsSource() && artifacts_.contains(held.facts.artifact_id)) {
      away.artifacts.insert(held.facts.artifact_id);
    }
  }
  if (!away.artifacts.empty()) away_[node.facts.node_id] = std::move(away);
}

absl::StatusOr<bool> Directory::UpdateReplicas(const NodeIdentity& identity, uint64_t sequence,
                                               const std::vector<ReplicaInfo>& reported, SteadyTime now) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  const std::vector<ReplicaInfo> replicas = ValidReplicas(*node, reported);
  if (sequence <= node->sequence) return node->inventory_wanted;  // a repeated call
  // After a gap these replicas are still as the node says; it is others that may be wrong until the inventory
  // comes.
  if (sequence != node->sequence + 1) node->inventory_wanted = true;
  node->sequence = sequence;
  for (const ReplicaInfo& replica : replicas) {
    NoteReported(identity.node_id, replica.artifact_id);
    if (Removes(replica.state)) {
      RemoveReplica(*node, replica.id, now);
    } else {
      PutReplica(*node, replica);
    }
  }
  return node->inventory_wanted;
}

absl::StatusOr<std::vector<std::string>> Directory::ReconcileInventory(
    const NodeIdentity& identity, uint64_t sequence, const std::vector<ReplicaInfo>& reported,
    SteadyTime now) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  const std::vector<ReplicaInfo> replicas = ValidReplicas(*node, reported);
  std::set<std::string> unknown;
  std::set<std::string> listed;
  for (const ReplicaInfo& replica : replicas) {
    if (Removes(replica.state)) continue;
    listed.insert(replica.id);
    // Told back, so that the node publishes them again. Not what was deleted: that it is told to forget.
    if (replica.state == ReplicaState::kReady && !artifacts_.contains(replica.artifact_id) &&
        !tombstones_.contains(replica.artifact_id)) {
      unknown.insert(replica.artifact_id);
    }
  }
  std::vector<std::string> unknown_artifacts(unknown.begin(), unknown.end());
  // The snapshot was taken before an update that has arrived already (a repeated call, a slow one): it would
  // bring back what is gone.
  if (sequence < node->sequence) {
    node->inventory_wanted = true;
    return unknown_artifacts;
  }
  away_.erase(identity.node_id);
  // A daemon that stops says that it holds nothing; its packed files come back with it.
  if (listed.empty()) NoteAway(*node, /*only_disk=*/true, now);
  std::vector<std::string> gone;
  for (const auto& [replica_id, held] : node->replicas) {
    if (!listed.contains(replica_id)) gone.push_back(replica_id);
  }
  for (const std::string& replica_id : gone) RemoveReplica(*node, replica_id, now);
  for (const ReplicaInfo& replica : replicas) {
    if (!Removes(replica.state)) PutReplica(*node, replica);
  }
  node->sequence = sequence;
  node->inventory_wanted = false;
  node->reported = true;
  return unknown_artifacts;
}

void Directory::ForEachReplica(std::string_view artifact_id,
                               const std::function<bool(const NodeState&, const HeldReplica&)>& visit) const {
  auto holders = holders_.find(artifact_id);
  if (holders == holders_.end()) return;
  for (const auto& [node_id, replica_id] : holders->second) {
    const NodeState& node = nodes_.find(node_id)->second;
    if (!visit(node, node.replicas.find(replica_id)->second)) return;
  }
}

bool Directory::HasCopyOffDrainingNodes(const HeldReplica& replica) const {
  bool found = false;
  ForEachReplica(replica.facts.artifact_id, [&](const NodeState& node, const HeldReplica& other) {
    found = other.facts.id != replica.facts.id && other.IsSource() && !node.draining;
    return !found;
  });
  return found;
}

// Derived from what the node still reports, so it is repeated until the node has obeyed and said so.
std::vector<std::string> Directory::ForgottenOn(const NodeState& node) const {
  std::set<std::string> forgotten;
  for (const auto& [replica_id, held] : node.replicas) {
    if (tombstones_.contains(held.facts.artifact_id)) forgotten.insert(held.facts.artifact_id);
  }
  return {forgotten.begin(), forgotten.end()};
}

// Packed files stay: the node may come back. A partial replica is not a copy, nor is one that is not
// verified whole: they go without one elsewhere.
std::vector<std::string> Directory::EvictableOn(const NodeState& node) const {
  std::vector<std::string> evictable;
  for (const auto& [replica_id, held] : node.replicas) {
    const bool in_memory = held.facts.location.kind != LocationKind::kDisk;
    const bool may_go = held.IsSource() ? HasCopyOffDrainingNodes(held) || IsReleased(held.facts.artifact_id)
                                        : (held.IsPartial() && !held.evicting) || held.IsReady();
    if (in_memory && may_go && !held.facts.pinned) evictable.push_back(replica_id);
  }
  return evictable;
}

}  // namespace tensorcast::global_store
