// Evictions: decides whether a replica may go, and which other replicas count as copies. A difference always
// may go.
//
// A node is trusted only about itself. Its own other replicas count as it reports them. A replica on another
// node counts only if that node has just proven that it has the bytes (ProveCopies in
// global_store/service/daemon_calls.h): a false report costs nothing, and the last copy would be evicted for
// it. The same holds for files that another node imported, and for shared objects, which the evicting node
// reads itself: another node said that they are the artifact. The proof is an answer equal to that of the
// evicting node, which can only harm its own replica by a lie.
//
// Has no state of its own: a replica that may go is marked in the inventory. Thread-compatible.
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
  // `origin_finding_age`: how long an origin that was found intact counts as a copy, and how long a node that
  // did not answer about one is not asked again. All others must outlive it.
  Evictions(absl::Duration origin_finding_age, const Membership& nodes, const Catalog& catalog,
            Inventory* inventory)
      : origin_finding_age_(origin_finding_age), nodes_(nodes), catalog_(catalog), inventory_(inventory) {}

  // Granted unless it is the last copy; copies on other nodes count where `proofs` names them as proven.
  // NOT_FOUND, and an inventory is wanted, for a replica that the node has not reported yet. A replica
  // granted for eviction is no longer offered.
  absl::StatusOr<EvictionDecision> Request(const NodeIdentity& node, std::string_view replica_id,
                                           SteadyTime now, const Proofs& proofs = {});
  // The node kept a replica that it was allowed to evict: it counts again.
  absl::Status Withdraw(const NodeIdentity& node, std::string_view replica_id);
  // The replicas that a draining node is asked to evict.
  std::vector<std::string> EvictableOn(std::string_view node_id) const;
  // Facts that delete the artifact, a version that no key keeps, of which this replica is the last copy;
  // empty if it may not, or need not, be deleted.
  DurableFacts PrepareReleaseOf(const ReplicaName& replica, const Proofs& proofs, absl::Time now) const;

 private:
  // The artifact's other replicas that outlive this replica.
  struct Copies {
    bool counted = false;               // one is on the node itself, or proven
    std::vector<CopyToProve> to_prove;  // otherwise: some that may count
    std::string unproven;               // which ones did not prove their bytes: "node b"
  };
  Copies FindCopies(const HeldReplica& replica, const Proofs& proofs) const;
  // Whether the last copy of the artifact has to stay. False for a difference: its target can be had without
  // it.
  bool NeedsCopies(std::string_view artifact_id) const;
  bool HasCopyOffDrainingNodes(const HeldReplica& replica) const;
  // Adds the origins that were found intact.
  void AddOrigins(const OriginsAsCopies& origins, const HeldReplica& replica, const Proofs& proofs,
                  Copies& copies) const;
  // nullopt: it may go.
  std::optional<EvictionDecision> Refuse(const HeldReplica& replica, const Proofs& proofs,
                                         SteadyTime now) const;

  const absl::Duration origin_finding_age_;
  const Membership& nodes_;
  const Catalog& catalog_;
  Inventory* const inventory_;
};

// How to ask the replica's node for a proof.
CopyToProve ToProve(const Node& node, const HeldReplica& replica);

}  // namespace tensorcast::global_store
