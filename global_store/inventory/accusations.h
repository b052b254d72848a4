// Accusations of corruption: a receiver reports that bytes of a replica which it was granted do not match the
// manifest. A node is trusted only about itself, so one accusation never ends another node's replica:
//
//   - An accusation counts only from the receiver of a grant on that replica.
//   - The replica is neither offered nor counted as a copy while its holder digests it again. It still
//     matters: no node may evict it as if it were worth nothing.
//   - If the bytes are right, the replica is offered again, and the accuser loses weight. Accusations of an
//     accuser that kMaxRefutations holders refuted only reach the holder. If they are wrong, the holder drops
//     the replica itself.
//   - The holder's answer does not count against kEnoughAccusers different receivers that have weight, if
//     these are more than the receivers that pulled the replica and found it right.
//
// Soft state: accusations go with the replica, and the weight of accusers with this process.
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
  // Both must outlive it.
  Accusations(const Membership& nodes, Inventory* inventory) : nodes_(nodes), inventory_(inventory) {}

  // REQUIRES: `accuser` is the live receiver of a grant on the replica.
  void Note(const ReplicaName& replica, const Node& accuser, SteadyTime now);
  // A pull from the replica succeeded. `reader` is the receiver.
  void NoteRead(const ReplicaName& replica, const Node& reader);
  // The replicas accused since the last call: their nodes have to digest them again.
  std::vector<CopyToProve> Take();
  // The replica's node digested it again and reports that the bytes match the manifest.
  void NoteIntact(const ReplicaName& replica);

 private:
  bool HasWeight(const std::string& accuser) const;

  const Membership& nodes_;
  Inventory* const inventory_;
  std::vector<ReplicaName> accused_;  // that Take has not returned yet
  // Names of accusers -> names of the holders that refuted their accusations.
  absl::btree_map<std::string, std::set<std::string>> refutations_;
};

}  // namespace tensorcast::global_store
