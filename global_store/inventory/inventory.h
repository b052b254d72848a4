// The inventory: which replicas each live node holds, as it reports them, and what nodes that are away held
// when they were last heard. Soft state.
//
// Owns the replicas and their indices; reads membership and catalog, which must outlive it. Grants end where
// replicas go: the calls say which went, and the directory tells the transfers. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/steady_time.h"
#include "global_store/catalog/catalog.h"
#include "global_store/inventory/replica.h"
#include "global_store/inventory/source_index.h"
#include "global_store/membership/membership.h"

namespace tensorcast::global_store {

// What a heartbeat's digest says of the replicas that are listed for its node.
enum class InventoryMatch : uint8_t {
  kUnknown,  // an update or an inventory is under way, or a difference is not old enough to be one
  kEqual,
  kDiffers,       // as before: the inventory that was wanted did not mend it
  kBeganToDiffer  // an inventory is wanted
};

// What an update or an inventory changed.
struct InventoryChange {
  bool inventory_wanted = false;          // something was missed
  std::vector<std::string> gone;          // replica ids
  std::vector<std::string> artifacts;     // of which the node reported a replica
  std::vector<std::string> unknown = {};  // artifacts that the catalog never heard of
};

class Inventory {
 public:
  using Replicas = std::map<std::string, HeldReplica, std::less<>>;  // by id
  using Holders = std::set<std::pair<std::string, std::string>>;     // node id, replica id
  // What a node that is gone held when it was last heard: it may come back with it.
  struct AwayNode {
    std::string name;
    SteadyTime since;
    std::set<std::string, std::less<>> artifacts;
  };

  Inventory(const Membership& nodes, const Catalog& catalog) : nodes_(nodes), catalog_(catalog) {}

  // Around each registration of a node, which may change its labels. The node's inventory is wanted.
  void Suspend(std::string_view node_id);
  void Admit(const Node& node);
  // Before the node goes: what it could have served is remembered for while it is away.
  void Remove(const Node& node, SteadyTime now);

  // INVALID_ARGUMENT: why a replica that this node reports is refused.
  static absl::Status Check(const std::string& node_id, const ReplicaInfo& replica);
  // Those that are invalid are left out: one bad entry is not a reason to refuse the others. REQUIRES, for
  // all calls that take a node's id: it is alive.
  InventoryChange Update(const std::string& node_id, uint64_t sequence,
                         const std::vector<ReplicaInfo>& replicas);
  // Replaces all that is known of the node's replicas. An inventory older than the last update changes
  // nothing, and another is wanted.
  InventoryChange Reconcile(const std::string& node_id, uint64_t sequence,
                            const std::vector<ReplicaInfo>& replicas, SteadyTime now);
  // One that came with a publication: the node's own updates are newer.
  void AddPublished(const std::string& node_id, const ReplicaInfo& replica);
  // The last update that a heartbeat names. Returns whether an inventory is wanted.
  bool NoteSequence(const std::string& node_id, uint64_t sequence);
  // `digest`: of what the node holds at this sequence (core/replica/inventory_digest.h).
  InventoryMatch Compare(const std::string& node_id, uint64_t sequence, uint64_t digest, SteadyTime now);
  // Of the replicas that are listed for the node.
  uint64_t DigestOf(std::string_view node_id) const;
  void Want(const std::string& node_id) { held_.find(node_id)->second.wanted = true; }
  // Changes what a replica is worth; the index of sources follows.
  void Change(const ReplicaName& name, absl::FunctionRef<void(HeldReplica&)> change);
  void ExpireAway(SteadyTime now);

  // Null: the node has none of this id.
  const HeldReplica* Find(std::string_view node_id, std::string_view replica_id) const;
  const Replicas& ReplicasOf(std::string_view node_id) const;
  // Node and replica of each replica of the artifact, in any state.
  const Holders& HoldersOf(std::string_view artifact_id) const;
  // Calls `visit` for each replica of the artifact until it returns false.
  void ForEach(std::string_view artifact_id,
               absl::FunctionRef<bool(const Node&, const HeldReplica&)> visit) const;
  // Of one node.
  void ForEachOf(std::string_view artifact_id, std::string_view node_id,
                 absl::FunctionRef<void(const SourceRef&)> visit) const;
  const SourceIndex& sources() const { return sources_; }
  // The first of the artifact's replicas on the node that fits; null: none does.
  const HeldReplica* FindOf(std::string_view artifact_id, std::string_view node_id,
                            absl::FunctionRef<bool(const HeldReplica&)> fits) const;
  // In memory and ready, though it may be evicting.
  const HeldReplica* FindInMemory(std::string_view artifact_id, std::string_view node_id) const;
  // At a location and filling: for its pace.
  HeldReplica* FindFilling(std::string_view artifact_id, std::string_view node_id, const Location& location);

  // Its inventory arrived since it registered.
  bool HasReported(std::string_view node_id) const { return held_.find(node_id)->second.reported; }
  // By node id.
  const absl::btree_map<std::string, AwayNode>& away() const { return away_; }
  bool IsAwayWith(std::string_view artifact_id) const;
  // What the node is told to forget: replicas of artifacts that were deleted.
  std::vector<std::string> ForgottenOn(std::string_view node_id) const;
  uint64_t size() const { return replicas_; }
  // Visits every replica.
  std::map<std::pair<LocationKind, ReplicaState>, uint64_t> CountByState() const;

 private:
  friend class DirectoryInvariants;  // tests

  struct Held {
    const Node* node = nullptr;
    Replicas replicas;               // pointed at by the index of sources
    uint64_t sequence = 0;           // of the last change that was applied
    uint64_t reported_sequence = 0;  // by the heartbeat before: what it names must have arrived by the next
    bool wanted = true;
    bool reported = false;  // its inventory arrived since it registered
    uint64_t digest = 0;    // of `replicas`
    // The difference that its heartbeats named last, and since when.
    uint64_t doubted_sequence = 0;
    uint64_t doubted_digest = 0;
    SteadyTime doubted_since = SteadyTime::InfiniteFuture();
    bool differs = false;
  };

  void Put(Held& held, const ReplicaInfo& replica);
  bool Erase(Held& held, const std::string& replica_id);
  void LeaveHolders(const std::string& artifact_id, const std::string& node_id,
                    const std::string& replica_id);
  void NoteAway(const Held& held, bool only_disk, SteadyTime now);

  const Membership& nodes_;
  const Catalog& catalog_;
  absl::flat_hash_map<std::string, Held> held_;        // by node id
  absl::flat_hash_map<std::string, Holders> holders_;  // by artifact id
  SourceIndex sources_;
  uint64_t replicas_ = 0;                        // of all nodes
  absl::btree_map<std::string, AwayNode> away_;  // by node id
};

}  // namespace tensorcast::global_store
