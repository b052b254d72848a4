// Records how artifacts reached the fleet: for each receiver, its main source, and the begin and end of its
// transfer. ExplainRollout reports these records. Soft state; README.md has the rules.
//
// Keeps at most `max_hops` hops. Forgets first the artifact that has had no new receiver for the longest
// time. Deterministic: callers pass the time. Thread-compatible: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/steady_time.h"
#include "core/replica/replica.h"

namespace tensorcast::global_store {

// A node's id and name at the time of the transfer. The node may be gone.
struct RolloutNode {
  std::string id;
  std::string name;
};

// The last transfer of an artifact to a node.
struct RolloutHop {
  std::shared_ptr<const RolloutNode> receiver = nullptr;
  std::shared_ptr<const RolloutNode> source = nullptr;  // null: the receiver had no grant
  std::string lane = {};                                // of the source's grant
  uint64_t bytes = 0;                                   // from all sources
  uint64_t source_bytes = 0;                            // from `source`, by one grant
  SteadyTime begun = {};                                // the receiver's first request for a grant
  SteadyTime ended = SteadyTime::InfiniteFuture();
  bool failed = false;
  std::string transfer_id = {};  // empty: the receiver has not reported it

  bool HasEnded() const { return ended != SteadyTime::InfiniteFuture(); }
  SteadyTime EndBy(SteadyTime now) const { return HasEnded() ? ended : now; }
};

// The receiver's report at the end of a grant.
struct GrantReceipt {
  uint64_t bytes = 0;
  std::string transfer_id = {};
};

class RolloutLog {
 public:
  static constexpr size_t kMaxHops = 65536;
  explicit RolloutLog(size_t max_hops = kMaxHops) : max_hops_(max_hops) {}

  // Sets the time when this store began to listen. Earlier transfers are unknown.
  void SetBegin(SteadyTime now) { begin_ = now; }
  SteadyTime begin() const { return begin_; }

  // Call this when a node asks for sources. `first`: true until the node's transfer has been given a source.
  void NoteAsked(std::string_view artifact_id, const RolloutNode& receiver, bool first, SteadyTime now);
  // Call this when the node was given a grant.
  void NoteGiven(std::string_view artifact_id, std::string_view receiver_id, const RolloutNode& source,
                 std::string_view lane);
  // Call this when the node completed the grant. `succeeded`: the transfer succeeded.
  void NoteCompleted(std::string_view artifact_id, std::string_view receiver_id, const RolloutNode& source,
                     std::string_view lane, const GrantReceipt& receipt, bool succeeded, SteadyTime now);
  // Call this for each reported replica. A ready, failed, partial or gone one in memory ends its transfer.
  void NoteReplica(std::string_view node_id, const ReplicaInfo& replica, SteadyTime now);
  // Call this with all replicas of the node. A running transfer has failed if the node has no replica of its
  // artifact.
  void NoteInventory(std::string_view node_id, const std::vector<ReplicaInfo>& replicas, SteadyTime now);
  // Call this when the node is gone. The node's running transfers then count as failed.
  void NoteNodeGone(std::string_view node_id, SteadyTime now);
  void Forget(std::string_view artifact_id);

  // The hops of the artifact, in no particular order.
  std::vector<RolloutHop> HopsOf(std::string_view artifact_id) const;
  // The number of hops that were forgotten for lack of room.
  uint64_t forgotten() const { return forgotten_; }
  size_t size() const { return hops_; }

 private:
  struct Artifact {
    std::string artifact_id;
    absl::flat_hash_map<std::string_view, RolloutHop> hops;  // by the receiver's id, which is in its
                                                             // RolloutNode
  };
  using Artifacts = std::list<Artifact>;  // the artifact with the newest hop comes last

  RolloutHop* Find(std::string_view artifact_id, std::string_view receiver_id);
  // Null: this artifact's hops already use all the room.
  RolloutHop* Add(std::string_view artifact_id, const RolloutNode& receiver);
  void Begin(std::string_view artifact_id, RolloutHop& hop);
  void End(std::string_view artifact_id, RolloutHop& hop, SteadyTime now);
  std::shared_ptr<const RolloutNode> Intern(const RolloutNode& node);
  void Erase(Artifacts::iterator artifact);
  void DropUnusedNodes();

  const size_t max_hops_;
  SteadyTime begin_ = SteadyTime::InfinitePast();
  Artifacts artifacts_;
  absl::flat_hash_map<std::string_view, Artifacts::iterator> by_id_;  // the ids are in `artifacts_`
  // By id; the key points into the value. The hops of a node share its value.
  absl::flat_hash_map<std::string_view, std::shared_ptr<const RolloutNode>> nodes_;
  // By the receiver's id: the artifacts of its running hops. A node has few of them at a time.
  absl::flat_hash_map<std::string, absl::flat_hash_set<std::string_view>> under_way_;
  size_t hops_ = 0;
  uint64_t forgotten_ = 0;
};

}  // namespace tensorcast::global_store
