#include "global_store/rollouts/rollout_log.h"

#include <iterator>
#include <utility>

namespace tensorcast::global_store {
namespace {

// Nodes choose their transfers' ids: a UUID fits.
constexpr size_t kMaxTransferIdBytes = 64;

// So many nodes that no hop names any more are kept before they are looked for.
constexpr size_t kUnusedNodes = 1024;

}  // namespace

RolloutHop* RolloutLog::Find(std::string_view artifact_id, std::string_view receiver_id) {
  const auto artifact = by_id_.find(artifact_id);
  if (artifact == by_id_.end()) return nullptr;
  const auto hop = artifact->second->hops.find(receiver_id);
  return hop == artifact->second->hops.end() ? nullptr : &hop->second;
}

// Where the log is full, the artifact that was longest without a new receiver makes room. The artifact that
// gets the hop never gives way to itself.
RolloutHop* RolloutLog::Add(std::string_view artifact_id, const RolloutNode& receiver) {
  auto known = by_id_.find(artifact_id);
  if (hops_ >= max_hops_) {
    const bool only_this = known != by_id_.end() && artifacts_.size() == 1;
    const auto oldest = known != by_id_.end() && artifacts_.begin() == known->second
                            ? std::next(artifacts_.begin())
                            : artifacts_.begin();
    if (only_this || oldest == artifacts_.end()) {
      ++forgotten_;
      return nullptr;
    }
    forgotten_ += oldest->hops.size();
    Erase(oldest);
    known = by_id_.find(artifact_id);
  }
  if (known == by_id_.end()) {
    artifacts_.push_back({.artifact_id = std::string(artifact_id), .hops = {}});
    known = by_id_.emplace(artifacts_.back().artifact_id, std::prev(artifacts_.end())).first;
  }
  artifacts_.splice(artifacts_.end(), artifacts_, known->second);
  std::shared_ptr<const RolloutNode> node = Intern(receiver);
  RolloutHop& hop = known->second->hops[node->id];
  hop.receiver = std::move(node);
  Begin(known->second->artifact_id, hop);
  ++hops_;
  return &hop;
}

void RolloutLog::Begin(std::string_view artifact_id, RolloutHop& hop) {
  hop.ended = SteadyTime::InfiniteFuture();
  // The set keeps a view of the id: it points into the list, which outlives every running hop of the
  // artifact.
  under_way_[hop.receiver->id].insert(by_id_.find(artifact_id)->second->artifact_id);
}

void RolloutLog::End(std::string_view artifact_id, RolloutHop& hop, SteadyTime now) {
  hop.ended = now;
  const auto of_node = under_way_.find(hop.receiver->id);
  if (of_node == under_way_.end()) return;
  of_node->second.erase(artifact_id);
  if (of_node->second.empty()) under_way_.erase(of_node);
}

std::shared_ptr<const RolloutNode> RolloutLog::Intern(const RolloutNode& node) {
  const auto known = nodes_.find(node.id);
  if (known != nodes_.end() && known->second->name == node.name) return known->second;
  // A node that was renamed keeps its former name in the hops of then.
  if (known != nodes_.end()) nodes_.erase(known);
  if (nodes_.size() >= 2 * hops_ + kUnusedNodes) DropUnusedNodes();
  auto added = std::make_shared<const RolloutNode>(node);
  nodes_.emplace(added->id, added);
  return added;
}

void RolloutLog::DropUnusedNodes() {
  absl::erase_if(nodes_, [](const auto& node) { return node.second.use_count() == 1; });
}

void RolloutLog::Erase(Artifacts::iterator artifact) {
  hops_ -= artifact->hops.size();
  for (auto& [receiver, hop] : artifact->hops) {
    if (!hop.HasEnded()) End(artifact->artifact_id, hop, begin_);
  }
  by_id_.erase(artifact->artifact_id);
  artifacts_.erase(artifact);
}

void RolloutLog::Forget(std::string_view artifact_id) {
  const auto known = by_id_.find(artifact_id);
  if (known != by_id_.end()) Erase(known->second);
}

void RolloutLog::NoteAsked(std::string_view artifact_id, const RolloutNode& receiver, bool first,
                           SteadyTime now) {
  RolloutHop* hop = Find(artifact_id, receiver.id);
  if (hop == nullptr) {
    hop = Add(artifact_id, receiver);
    if (hop != nullptr) hop->begun = now;
    return;
  }
  if (!hop->HasEnded()) return;
  if (first) {
    // The map's key is in `receiver`, so that stays.
    *hop = RolloutHop{.receiver = std::move(hop->receiver), .begun = now};
    Begin(artifact_id, *hop);
  } else if (hop->failed) {
    // The node goes on: what had ended was a replica beside this transfer.
    Begin(artifact_id, *hop);
    hop->failed = false;
  }
}

void RolloutLog::NoteGiven(std::string_view artifact_id, std::string_view receiver_id,
                           const RolloutNode& source, std::string_view lane) {
  RolloutHop* hop = Find(artifact_id, receiver_id);
  // Until one of several sources is known to have given bytes, the best one stands for all.
  if (hop == nullptr || hop->HasEnded() || hop->source != nullptr) return;
  hop->source = Intern(source);
  hop->lane = lane;
}

void RolloutLog::NoteCompleted(std::string_view artifact_id, std::string_view receiver_id,
                               const RolloutNode& source, std::string_view lane, const GrantReceipt& receipt,
                               bool succeeded, SteadyTime now) {
  RolloutHop* hop = Find(artifact_id, receiver_id);
  if (hop == nullptr) return;
  if (!receipt.transfer_id.empty()) {
    const std::string_view told = std::string_view(receipt.transfer_id).substr(0, kMaxTransferIdBytes);
    // A transfer that ended, and is told late: another one has ended here since.
    if (hop->HasEnded() && !hop->transfer_id.empty() && hop->transfer_id != told) return;
    hop->transfer_id = told;
  }
  hop->bytes += receipt.bytes;
  if (hop->source == nullptr || receipt.bytes > hop->source_bytes) {
    hop->source = Intern(source);
    hop->lane = lane;
    hop->source_bytes = receipt.bytes;
  }
  if (!succeeded) return;
  if (!hop->HasEnded()) End(artifact_id, *hop, now);
  hop->failed = false;
}

void RolloutLog::NoteReplica(std::string_view node_id, const ReplicaInfo& replica, SteadyTime now) {
  if (replica.location.kind == LocationKind::kDisk) return;
  const bool ready = replica.state == ReplicaState::kReady;
  const bool failed = replica.state == ReplicaState::kFailed || replica.state == ReplicaState::kGone ||
                      replica.state == ReplicaState::kPartial;
  if (!ready && !failed) return;
  RolloutHop* hop = Find(replica.artifact_id, node_id);
  // An end that is known stays, except that a replica which is ready after all corrects a failure.
  if (hop == nullptr || (hop->HasEnded() && !(ready && hop->failed))) return;
  End(replica.artifact_id, *hop, now);
  hop->failed = failed;
}

void RolloutLog::NoteInventory(std::string_view node_id, const std::vector<ReplicaInfo>& replicas,
                               SteadyTime now) {
  const auto of_node = under_way_.find(node_id);
  absl::flat_hash_set<std::string_view> missed;
  if (of_node != under_way_.end()) missed = of_node->second;
  for (const ReplicaInfo& replica : replicas) {
    if (replica.location.kind != LocationKind::kDisk) missed.erase(replica.artifact_id);
  }
  // `missed` is a copy: End changes the set of running hops.
  for (const std::string_view artifact_id : missed) {
    RolloutHop* hop = Find(artifact_id, node_id);
    End(artifact_id, *hop, now);
    hop->failed = true;
  }
  for (const ReplicaInfo& replica : replicas) NoteReplica(node_id, replica, now);
}

void RolloutLog::NoteNodeGone(std::string_view node_id, SteadyTime now) { NoteInventory(node_id, {}, now); }

std::vector<RolloutHop> RolloutLog::HopsOf(std::string_view artifact_id) const {
  std::vector<RolloutHop> hops;
  const auto artifact = by_id_.find(artifact_id);
  if (artifact == by_id_.end()) return hops;
  hops.reserve(artifact->second->hops.size());
  for (const auto& [receiver, hop] : artifact->second->hops) hops.push_back(hop);
  return hops;
}

}  // namespace tensorcast::global_store
