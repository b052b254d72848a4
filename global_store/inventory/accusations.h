// Accusations of corruption: a receiver says that the bytes of a replica which it was granted do not match
// the manifest. A node speaks for itself alone, so that one accusation never ends another node's replica:
//
//   - It counts only from the receiver of a grant on that replica.
//   - The replica is neither offered nor counted as a copy while its holder digests it again. It still
//     matters: no node may evict it as if it were worth nothing.
//   - Right: it is offered again, and the accuser loses weight. An accuser that kMaxRefutations holders
//     refuted is heard by the holder only. Wrong: the holder drops it itself.
//   - The holder's word does not stand against kEnoughAccusers different receivers that have weight, if
//     these are more than the receivers that pulled the replica and found it right.
//
// Soft state: it goes with the replica, and the weight of accusers with this process. Thread-compatible.
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
  // Both must outlive this.
  Accusations(const Membership& nodes, Inventory* inventory) : nodes_(nodes), inventory_(inventory) {}

  // REQUIRES: `accuser` is the live receiver of a grant on the replica.
  void Note(const ReplicaName& replica, const Node& accuser, SteadyTime now);
  // A pull from the replica ended well. `reader` is the receiver.
  void NoteRead(const ReplicaName& replica, const Node& reader);
  // Replicas that were accused since the last call: their nodes are to digest them again.
  std::vector<CopyToProve> Take();
  // Its node did, and the bytes match the manifest, as it says.
  void NoteIntact(const ReplicaName& replica);

 private:
  bool HasWeight(const std::string& accuser) const;

  const Membership& nodes_;
  Inventory* const inventory_;
  std::vector<ReplicaName> accused_;  // that Take has yet to give
  // Names of accusers -> names of the holders that refuted them.
  absl::btree_map<std::string, std::set<std::string>> refutations_;
};

}  // namespace tensorcast::global_store
