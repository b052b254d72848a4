// Evictions: whether a replica may go, and what counts as a copy then.
//
// A node speaks for itself alone. Its other replicas count as it reports them; a replica on another node
// counts only where that node has just proven that it has the bytes (global_store/service/possession.h): a
// report costs nothing, and the last copy would go for it. So do files that another node imported. The proof
// is an answer equal to that of the node which evicts, which can harm nothing but its own replica by a lie.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

// So many holders are asked side by side, of so many that are looked at: the nodes after the one that evicts,
// in the order of their ids, so that many nodes that evict ask different ones.
constexpr size_t kAskedAtOnce = 3;
constexpr size_t kMaxLookedAt = 128;

bool HasName(const std::vector<ReplicaName>& names, const ReplicaInfo& replica) {
  return std::ranges::any_of(names, [&](const ReplicaName& name) {
    return name.replica_id == replica.id && name.node_id == replica.node_id;
  });
}

}  // namespace

// A packed file outlives its daemon, so it counts wherever it is; memory on a node that drains is about to
// go.
bool Directory::Outlives(const NodeState& node, const HeldReplica& replica) {
  return replica.IsSource() && (replica.facts.location.kind == LocationKind::kDisk || !node.draining);
}

CopyToProve Directory::ToProve(const NodeState& node, const HeldReplica& replica) {
  return {.replica = {node.facts.node_id, replica.facts.id},
          .node_name = node.facts.name,
          .grpc_address = node.facts.grpc_address};
}

Directory::Copies Directory::FindCopies(const NodeState& node, const HeldReplica& replica,
                                        const Proofs& proofs) const {
  Copies copies;
  const auto holders = holders_.find(replica.facts.artifact_id);
  if (holders == holders_.end()) return copies;
  const HolderSet& all = holders->second;
  auto next = all.lower_bound({node.facts.node_id, ""});
  for (size_t i = 0; i < std::min(all.size(), kMaxLookedAt); ++i, ++next) {
    if (next == all.end()) next = all.begin();
    const NodeState& holder = nodes_.find(next->first)->second;
    const HeldReplica& other = holder.replicas.find(next->second)->second;
    if (&other == &replica || !Outlives(holder, other)) continue;
    if (&holder == &node || HasName(proofs.proven, other.facts)) {
      copies.counted = true;
      return copies;
    }
    if (HasName(proofs.unproven, other.facts)) {
      copies.unproven = holder.facts.name;
    } else if (!holder.unreachable && copies.to_prove.size() < kAskedAtOnce) {
      copies.to_prove.push_back(ToProve(holder, other));
    }
  }
  return copies;
}

absl::StatusOr<EvictionDecision> Directory::RequestEviction(const NodeIdentity& identity,
                                                            std::string_view replica_id, SteadyTime now,
                                                            const Proofs& proofs) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  auto held = node->replicas.find(replica_id);
  if (held == node->replicas.end()) {
    node->inventory_wanted = true;
    return absl::NotFoundError(absl::StrCat("the global store does not know replica ", replica_id,
                                            " yet: send the inventory, then ask again"));
  }
  HeldReplica& replica = held->second;
  // An artifact that was never published (or lost its record) still matters; only a deleted one does
  // not.
  const bool matters = replica.Matters() && !tombstones_.contains(replica.facts.artifact_id);
  const auto to_be_proven = [&](std::vector<CopyToProve> copies) {
    return EvictionDecision{
        .reason = absl::StrCat("no other node has proven that it has a copy of ", replica.facts.artifact_id),
        .to_prove = {.artifact_id = replica.facts.artifact_id,
                     .image_bytes = replica.facts.image_bytes,
                     .evicting = ToProve(*node, replica),
                     .copies = std::move(copies)}};
  };
  if (matters) {
    Copies copies = FindCopies(*node, replica, proofs);
    if (!copies.counted && !copies.to_prove.empty()) return to_be_proven(std::move(copies.to_prove));
    // Its manifest goes first, so that no key can be bound meanwhile to what is about to be lost.
    if (!copies.counted && IsReleased(replica.facts.artifact_id)) {
      return EvictionDecision{.reason = "its artifact, a version that no key keeps, is not deleted yet",
                              .release_first = true};
    }
    if (!copies.counted) {
      OriginsAsCopies origins = JudgeOrigins(replica.facts.artifact_id, now);
      for (const Origin* origin : origins.intact) {
        const ReplicaName name{.node_id = origin->node_id, .replica_id = ""};
        const NodeFacts& facts = nodes_.find(origin->node_id)->second.facts;
        if (origin->node_id == identity.node_id || std::ranges::count(proofs.proven, name) > 0) {
          copies.counted = true;
        } else if (std::ranges::count(proofs.unproven, name) > 0) {
          copies.unproven = facts.name;
        } else if (copies.to_prove.size() < kAskedAtOnce) {
          copies.to_prove.push_back({.replica = name,
                                     .node_name = facts.name,
                                     .grpc_address = facts.grpc_address,
                                     .origin = *origin});
        }
      }
      if (!copies.counted && !copies.to_prove.empty()) return to_be_proven(std::move(copies.to_prove));
      if (!copies.counted) {
        const std::string liar =
            copies.unproven.empty()
                ? ""
                : absl::StrCat(", node ", copies.unproven, " did not prove that it has the copy it reports");
        return EvictionDecision{
            .reason = WhyItStays(replica.facts.artifact_id, absl::StrCat(liar, origins.others)),
            .waiting_for = std::move(origins.comparing),
            .unchecked_origins = std::move(origins.unchecked)};
      }
    }
  }
  // From this moment no copy: neither offered as a source, nor counted when another node asks to evict the
  // same artifact. So two nodes cannot each rely on the other's copy.
  LeaveSources(*node, replica);
  replica.evicting = true;
  return EvictionDecision{.granted = true};
}

absl::Status Directory::WithdrawEviction(const NodeIdentity& identity, std::string_view replica_id) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  auto held = node->replicas.find(replica_id);
  if (held == node->replicas.end() || !held->second.evicting) return absl::OkStatus();
  held->second.evicting = false;
  JoinSources(*node, held->second);
  return absl::OkStatus();
}

}  // namespace tensorcast::global_store
