// Accusations of corruption: a receiver says that the bytes of a replica which it was granted do not match
// the manifest. A node speaks for itself alone, so that one accusation never ends another node's replica:
//
//   - It counts only from the receiver of a grant on that replica.
//   - The replica is neither offered nor counted as a copy while its holder digests it again. It still
//   matters:
//     no node may evict it as if it were worth nothing.
//   - Right: it is offered again, and the accuser loses weight. An accuser that kMaxRefutations holders
//     refuted is heard by the holder only. Wrong: the holder drops it itself.
//   - The holder's word does not stand against kEnoughAccusers different receivers that have weight.
//
// Soft state: it goes with the replica, and the weight of accusers with this process.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"
#include "global_store/scheduler/scheduler.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kEnoughAccusers = 2;
constexpr size_t kMaxRefutations = 2;
// A holder reads some GB/s: until then receivers that have no other source wait for its answer.
constexpr absl::Duration kDigestTime = absl::Minutes(1);
constexpr size_t kMaxNamed = 5;

}  // namespace

bool Directory::HasWeight(const std::string& accuser) const {
  const auto refuted = refutations_.find(accuser);
  return refuted == refutations_.end() || refuted->second.size() < kMaxRefutations;
}

void Directory::NoteAccusation(const Grant& grant, SteadyTime now) {
  NodeState& holder = nodes_.find(grant.source_node)->second;
  HeldReplica& replica = holder.replicas.find(grant.replica_id)->second;
  // By name: a node may come back with another id, and its name is its certificate's.
  const std::string& accuser = nodes_.find(grant.receiver_node)->second.facts.name;
  if (!replica.accusers.insert(accuser).second) return;  // it was asked for this one already
  accused_.push_back({grant.source_node, grant.replica_id});
  replica.digested_by = now + kDigestTime;
  if (!HasWeight(accuser)) return;
  LeaveSources(holder, replica);
  replica.corrupt = true;
}

std::vector<std::string> Directory::AccusedElsewhere(const GrantRequest& request, const NodeState& receiver,
                                                     const SourceQuery& query, SteadyTime now) const {
  std::vector<std::string> accused;
  ForEachReplica(request.artifact_id, [&](const NodeState& node, const HeldReplica& held) {
    const SourceCandidate candidate{
        .replica_id = held.facts.id, .end = &node.end, .place = held.facts.location.kind};
    const bool is_digested = held.corrupt && held.Matters() && now < held.digested_by;
    if (is_digested && &node != &receiver && !node.unreachable && CanUse(query, candidate) &&
        !Names(request.excluded_replicas, held.facts)) {
      accused.push_back(absl::StrCat("a replica that ", node.facts.name, " digests again"));
    }
    return accused.size() < kMaxNamed;
  });
  return accused;
}

std::vector<CopyToProve> Directory::TakeAccused() {
  std::vector<CopyToProve> accused;
  for (const ReplicaName& name : std::exchange(accused_, {})) {
    const auto node = nodes_.find(name.node_id);
    if (node == nodes_.end()) continue;
    const auto held = node->second.replicas.find(name.replica_id);
    if (held != node->second.replicas.end()) accused.push_back(ToProve(node->second, held->second));
  }
  return accused;
}

void Directory::NoteIntact(const ReplicaName& name) {
  const auto node = nodes_.find(name.node_id);
  if (node == nodes_.end()) return;
  const auto held = node->second.replicas.find(name.replica_id);
  if (held == node->second.replicas.end()) return;
  HeldReplica& replica = held->second;
  replica.digested_by = SteadyTime::InfinitePast();
  const auto with_weight = std::ranges::count_if(
      replica.accusers, [this](const std::string& accuser) { return HasWeight(accuser); });
  for (const std::string& accuser : replica.accusers) {
    std::set<std::string>& by = refutations_[accuser];
    if (by.size() < kMaxRefutations) by.insert(node->second.facts.name);
  }
  if (!replica.corrupt || with_weight >= static_cast<int64_t>(kEnoughAccusers)) return;
  replica.corrupt = false;
  JoinSources(node->second, replica);
}

}  // namespace tensorcast::global_store
