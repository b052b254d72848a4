// Decides whether a replica may be evicted, and which other replicas count as copies. A difference may always
// be evicted.
//
// A node is trusted only about itself. The other replicas of the evicting node count as that node reports
// them. A replica on another node counts only if that node has just proven that it has the bytes (ProveCopies
// in global_store/service/daemon_calls.h): otherwise a false report could cause the eviction of the last
// copy. Files that another node imported need the same proof. Shared objects need the proof too, since
// another node may have reported them wrongly; the evicting node reads them itself. A copy is proven if its
// answer equals the answer of the evicting node. A false answer of the evicting node can only harm its own
// replica.
//
// Has no state of its own: the inventory marks a replica that may be evicted. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/inventory/inventory.h"
#include "global_store/inventory/origin_copies.h"

namespace tensorcast::global_store {

class Evictions {
 public:
  // `origin_finding_age`: see DirectoryOptions. The other arguments must outlive this object.
  Evictions(absl::Duration origin_finding_age, const Membership& nodes, const Catalog& catalog,
            Inventory* inventory)
      : origin_finding_age_(origin_finding_age), nodes_(nodes), catalog_(catalog), inventory_(inventory) {}

  // Granted unless the replica is the last copy; copies on other nodes count if `proofs` names them as
  // proven. NOT_FOUND for a replica that the node has not reported yet; the node is then asked for an
  // inventory. After a grant, the replica is no longer offered.
  absl::StatusOr<EvictionDecision> Request(const NodeIdentity& node, std::string_view replica_id,
                                           SteadyTime now, const Proofs& proofs = {});
  // Call this when the node kept a replica that it was allowed to evict: the replica counts again.
  absl::Status Withdraw(const NodeIdentity& node, std::string_view replica_id);
  // The replicas that a draining node is asked to evict.
  std::vector<std::string> EvictableOn(std::string_view node_id) const;
  // The facts that delete the artifact, if this replica is the last copy of a version that no key keeps.
  // Empty if the artifact may not, or need not, be deleted.
  DurableFacts PrepareReleaseOf(const ReplicaName& replica, const Proofs& proofs, absl::Time now) const;

 private:
  // The artifact's other copies, which remain if this replica is evicted.
  struct Copies {
    bool counted = false;               // a copy is on the node itself, or proven
    std::vector<CopyToProve> to_prove;  // if not counted: copies that may count
    std::string unproven;               // for people: the copies that did not prove their bytes
  };
  Copies FindCopies(const HeldReplica& replica, const Proofs& proofs) const;
  // Whether the last copy of the artifact has to stay. False for a difference, because nodes can get the
  // difference's target whole instead.
  bool NeedsCopies(std::string_view artifact_id) const;
  bool HasCopyOffDrainingNodes(const HeldReplica& replica) const;
  // Adds the origins that were found intact.
  void AddOrigins(const OriginsAsCopies& origins, const HeldReplica& replica, const Proofs& proofs,
                  Copies& copies) const;
  // The refusal; nullopt: the replica may be evicted.
  std::optional<EvictionDecision> Refuse(const HeldReplica& replica, const Proofs& proofs,
                                         SteadyTime now) const;

  const absl::Duration origin_finding_age_;
  const Membership& nodes_;
  const Catalog& catalog_;
  Inventory* const inventory_;
};

// The values with which to ask the replica's node for a proof.
CopyToProve ToProve(const Node& node, const HeldReplica& replica);

}  // namespace tensorcast::global_store
