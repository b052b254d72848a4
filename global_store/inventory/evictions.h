// Decides whether a replica may be evicted, and which other replicas count as copies. A difference may always
// be evicted.
//
// The store trusts a node only about itself. Other replicas on the evicting node count as that node reports
// them. The following copies count only if their node has just proven that it has the bytes (ProveCopies
// in global_store/service/daemon_calls.h):
// - replicas on other nodes
// - files that another node imported
// - shared objects, which the evicting node reads itself
//
// A copy is proven if the answer of its node equals the answer of the evicting node about the replica to
// evict.
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

  // Grants the eviction unless the replica is the last copy. Copies on other nodes count if `proofs` names
  // them as proven. After a grant, the store stops offering and counting the replica. NOT_FOUND: the node has
  // not reported this replica; the store then asks the node for an inventory.
  absl::StatusOr<EvictionDecision> Request(const NodeIdentity& node, std::string_view replica_id,
                                           SteadyTime now, const Proofs& proofs = {});
  // Call this when the node kept a replica that it was allowed to evict. The replica counts again.
  absl::Status Withdraw(const NodeIdentity& node, std::string_view replica_id);
  // The replicas that a draining node is asked to evict.
  std::vector<std::string> EvictableOn(std::string_view node_id) const;
  // The facts that delete the artifact, if this replica is the last copy of a version that no key keeps;
  // otherwise no facts.
  DurableFacts PrepareReleaseOf(const ReplicaName& replica, const Proofs& proofs, absl::Time now) const;

 private:
  // The artifact's other copies, which remain if this replica is evicted.
  struct Copies {
    bool counted = false;               // a copy is on the node itself, or proven
    std::vector<CopyToProve> to_prove;  // if not counted: copies that may count
    std::string unproven;               // for people: the copies that did not prove their bytes
  };
  Copies FindCopies(const HeldReplica& replica, const Proofs& proofs) const;
  // Whether the last copy of the artifact has to stay. False for a difference.
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

// The values to ask the replica's node for a proof.
CopyToProve ToProve(const Node& node, const HeldReplica& replica);

}  // namespace tensorcast::global_store
