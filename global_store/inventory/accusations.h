// Accusations of corruption: a receiver reports that bytes of a replica do not match the manifest. One
// accusation never ends another node's replica:
//
// - Only the receiver of a grant on the replica can accuse the replica.
// - The holder of an accused replica must digest the replica again. Meanwhile the replica is neither offered
//   nor counted as a copy. The eviction of the replica still needs all checks (HeldReplica::Matters).
// - If the bytes are right, the replica is offered again, and the holder has refuted the accuser. An accuser
//   that kMaxRefutations holders refuted has no weight: its accusations only make the holder digest the
//   replica.
// - If the bytes are wrong, the holder drops the replica.
// - The holder's answer does not count if at least kEnoughAccusers receivers with weight accuse the replica,
//   and they are more than the receivers that found the replica right.
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
  // The replicas that were accused since the last call. The caller must ask the holder of each replica to
  // digest it again.
  std::vector<CopyToProve> Take();
  // The holder digested the replica again and found the bytes right.
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
