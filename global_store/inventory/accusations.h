// Accusations of corruption: a receiver reports that bytes of a replica which it was granted do not match the
// manifest. A node is trusted only about itself, so one accusation never ends another node's replica:
//
// - An accusation counts only from the receiver of a grant on that replica.
// - The replica is neither offered nor counted as a copy while its holder digests it again. Evicting the
//   accused replica still needs the same checks as evicting any replica (HeldReplica::Matters).
// - If the holder finds the bytes right, the replica is offered again, and the refutation is counted against
//   the accuser. An accuser that kMaxRefutations holders refuted has no weight: its accusations only make the
//   holder digest the replica.
// - If the holder finds the bytes wrong, the holder drops the replica itself.
// - The holder's answer does not count if at least kEnoughAccusers receivers with weight accuse the replica,
//   and these accusers are more than the receivers that found the replica right.
//
// Soft state: accusations end with the replica, and the weight of accusers ends with this process.
// Thread-compatible.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "base/steady_time.h"
#include "global_store/inventory/inventory.h"

namespace tensorcast::global_store {

class Accusations {
 public:
  // Both must outlive this object.
  Accusations(const Membership& nodes, Inventory* inventory) : nodes_(nodes), inventory_(inventory) {}

  // REQUIRES: `accuser` is the live receiver of a grant on the replica.
  void Note(const ReplicaName& replica, const Node& accuser, SteadyTime now);
  // A pull from the replica succeeded. `reader` is the receiver.
  void NoteRead(const ReplicaName& replica, const Node& reader);
  // The replicas that were accused since the last call. The caller must ask their nodes to digest them again.
  std::vector<CopyToProve> Take();
  // The replica's node digested it again and reports that the bytes match the manifest.
  void NoteIntact(const ReplicaName& replica);

 private:
  bool HasWeight(const std::string& accuser) const;

  const Membership& nodes_;
  Inventory* const inventory_;
  std::vector<ReplicaName> accused_;  // the accused replicas that Take has not returned yet
  // Names of accusers -> names of the holders that refuted their accusations.
  absl::btree_map<std::string, std::set<std::string>> refutations_;
};

}  // namespace tensorcast::global_store
