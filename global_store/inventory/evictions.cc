#include "global_store/inventory/evictions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

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

// A packed file outlives its daemon, so it counts wherever it is; memory on a node that drains is about to
// go.
bool Outlives(const Node& node, const HeldReplica& replica) {
  return replica.IsSource() && (replica.facts.location.kind == LocationKind::kDisk || !node.draining);
}

}  // namespace

CopyToProve ToProve(const Node& node, const HeldReplica& replica) {
  return {.replica = {node.facts.node_id, replica.facts.id},
          .node_name = node.facts.name,
          .grpc_address = node.facts.grpc_address};
}

Evictions::Copies Evictions::FindCopies(const HeldReplica& replica, const Proofs& proofs) const {
  Copies copies;
  const Inventory::Holders& all = inventory_->HoldersOf(replica.facts.artifact_id);
  auto next = all.lower_bound({replica.facts.node_id, ""});
  for (size_t i = 0; i < std::min(all.size(), kMaxLookedAt); ++i, ++next) {
    if (next == all.end()) next = all.begin();
    const Node& holder = *nodes_.Find(next->first);
    const HeldReplica& other = *inventory_->Find(next->first, next->second);
    if (&other == &replica || !Outlives(holder, other)) continue;
    // A replica on the evicting node itself needs no proof: a node that lies about it loses only its own
    // copies.
    if (next->first == replica.facts.node_id || HasName(proofs.proven, other.facts)) {
      copies.counted = true;
      return copies;
    }
    if (HasName(proofs.unproven, other.facts)) {
      copies.unproven =
          absl::StrCat(", and node ", holder.facts.name, " did not prove the copy that it reports");
      // An unreachable node could not answer, and its slot goes to one that may.
    } else if (!holder.unreachable && copies.to_prove.size() < kAskedAtOnce) {
      copies.to_prove.push_back(ToProve(holder, other));
    }
  }
  return copies;
}

void Evictions::AddOrigins(const OriginsAsCopies& origins, const HeldReplica& replica, const Proofs& proofs,
                           Copies& copies) const {
  for (const Origin* origin : origins.intact) {
    // Of shared objects the evicting node gives the proof, unless it imported them itself.
    const bool shared = IsShared(*origin);
    const std::string& prover = shared ? replica.facts.node_id : origin->node_id;
    const ReplicaName name{.node_id = prover, .replica_id = shared ? std::string(PlaceOf(*origin)) : ""};
    const NodeFacts& facts = nodes_.Find(prover)->facts;
    if (origin->node_id == replica.facts.node_id || std::ranges::count(proofs.proven, name) > 0) {
      copies.counted = true;
    } else if (std::ranges::count(proofs.unproven, name) > 0) {
      copies.unproven =
          shared
              ? absl::StrCat(", and node ", facts.name, " did not prove that it can read ", PlaceOf(*origin))
              : absl::StrCat(", and node ", facts.name, " did not prove the copy that it reports");
    } else if (copies.to_prove.size() < kAskedAtOnce) {
      copies.to_prove.push_back(
          {.replica = name, .node_name = facts.name, .grpc_address = facts.grpc_address, .origin = *origin});
    }
  }
}

std::optional<EvictionDecision> Evictions::Refuse(const HeldReplica& replica, const Proofs& proofs,
                                                  SteadyTime now) const {
  const std::string& artifact_id = replica.facts.artifact_id;
  if (!replica.Matters() || !NeedsCopies(artifact_id)) return std::nullopt;
  const auto to_be_proven = [&](std::vector<CopyToProve> copies) {
    return EvictionDecision{
        .reason = absl::StrCat("no other node has proven that it has a copy of ", artifact_id, "; try again"),
        .to_prove = {.artifact_id = artifact_id,
                     .image_bytes = replica.facts.image_bytes,
                     .evicting = ToProve(*nodes_.Find(replica.facts.node_id), replica),
                     .copies = std::move(copies)}};
  };
  // The steps have the order of what an answer costs: a question to nodes that hold copies, the deletion of a
  // version that no key keeps, a look at origins. Each step is left for the next only where it gave no copy.
  Copies copies = FindCopies(replica, proofs);
  if (copies.counted) return std::nullopt;
  if (!copies.to_prove.empty()) return to_be_proven(std::move(copies.to_prove));
  // Its manifest goes first, so that no key can be bound meanwhile to what is about to be lost.
  if (catalog_.IsReleased(artifact_id)) {
    return EvictionDecision{
        .reason = "no key keeps this version, but the version is not deleted yet; try again",
        .release_first = true};
  }
  OriginsAsCopies origins =
      JudgeOrigins(catalog_, nodes_, artifact_id, replica.facts.node_id, origin_finding_age_, now);
  AddOrigins(origins, replica, proofs, copies);
  if (copies.counted) return std::nullopt;
  if (!copies.to_prove.empty()) return to_be_proven(std::move(copies.to_prove));
  return EvictionDecision{.reason = catalog_.WhyItStays(artifact_id, copies.unproven + origins.others),
                          .waiting_for = std::move(origins.comparing),
                          .unchecked_origins = std::move(origins.unchecked)};
}

absl::StatusOr<EvictionDecision> Evictions::Request(const NodeIdentity& node, std::string_view replica_id,
                                                    SteadyTime now, const Proofs& proofs) {
  TC_RETURN_IF_ERROR(nodes_.CheckIdentity(node));
  const HeldReplica* replica = inventory_->Find(node.node_id, replica_id);
  if (replica == nullptr) {
    inventory_->Want(node.node_id);
    return absl::NotFoundError(
        absl::StrCat("evict replica ", replica_id,
                     ": the global store does not know the replica yet; send the inventory, then ask again"));
  }
  if (std::optional<EvictionDecision> refused = Refuse(*replica, proofs, now)) return *std::move(refused);
  // From this moment no copy: neither offered as a source, nor counted when another node asks to evict the
  // same artifact. So two nodes cannot each rely on the other's copy.
  inventory_->Change({node.node_id, replica->facts.id}, [](HeldReplica& held) { held.evicting = true; });
  return EvictionDecision{.granted = true};
}

absl::Status Evictions::Withdraw(const NodeIdentity& node, std::string_view replica_id) {
  TC_RETURN_IF_ERROR(nodes_.CheckIdentity(node));
  inventory_->Change({node.node_id, std::string(replica_id)},
                     [](HeldReplica& held) { held.evicting = false; });
  return absl::OkStatus();
}

// An artifact that was never published (or lost its record) still needs them; a deleted one does not.
bool Evictions::NeedsCopies(std::string_view artifact_id) const {
  return !catalog_.IsDeleted(artifact_id) && catalog_.differences().Find(artifact_id) == nullptr;
}

bool Evictions::HasCopyOffDrainingNodes(const HeldReplica& replica) const {
  bool found = false;
  inventory_->ForEach(replica.facts.artifact_id, [&](const Node& node, const HeldReplica& other) {
    found = other.facts.id != replica.facts.id && other.IsSource() && !node.draining;
    return !found;
  });
  return found;
}

// Packed files stay: the node may come back. A partial replica is not a copy, nor is one that is not
// verified whole: they go without one elsewhere.
std::vector<std::string> Evictions::EvictableOn(std::string_view node_id) const {
  std::vector<std::string> evictable;
  for (const auto& [replica_id, replica] : inventory_->ReplicasOf(node_id)) {
    const bool in_memory = replica.facts.location.kind != LocationKind::kDisk;
    const std::string& artifact_id = replica.facts.artifact_id;
    const bool may_go = replica.IsSource() ? HasCopyOffDrainingNodes(replica) ||
                                                 catalog_.IsReleased(artifact_id) || !NeedsCopies(artifact_id)
                                           : (replica.IsPartial() && !replica.evicting) || replica.IsReady();
    if (in_memory && may_go && !replica.facts.pinned) evictable.push_back(replica_id);
  }
  return evictable;
}

DurableFacts Evictions::PrepareReleaseOf(const ReplicaName& name, const Proofs& proofs,
                                         absl::Time now) const {
  DurableFacts facts;
  const HeldReplica* replica = inventory_->Find(name.node_id, name.replica_id);
  if (replica == nullptr || !catalog_.IsReleased(replica->facts.artifact_id)) return facts;
  // Where another copy is left, or may be, the artifact stays for as long as that does.
  const Copies copies = FindCopies(*replica, proofs);
  if (copies.counted || !copies.to_prove.empty()) return facts;
  facts.artifacts.push_back(Catalog::ReleaseOf(replica->facts.artifact_id, now));
  return facts;
}

}  // namespace tensorcast::global_store
