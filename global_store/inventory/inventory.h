// The inventory: the replicas that live nodes report, and the artifacts that absent nodes held at their last
// report. Soft state.
//
// Owns the replicas and their indices. Reads membership and catalog, which must outlive this object. REQUIRES
// of all calls with a node id: the node is alive. Calls that remove replicas return their ids, and the caller
// ends their grants. Thread-compatible.
#pragma once

#include <algorithm>
#include <array>
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
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "base/steady_time.h"
#include "global_store/catalog/catalog.h"
#include "global_store/inventory/replica.h"
#include "global_store/inventory/source_index.h"
#include "global_store/membership/membership.h"

namespace tensorcast::global_store {

// How a heartbeat's digest compares with the listed replicas of its node.
enum class InventoryMatch : uint8_t {
  kUnknown,  // an update or an inventory is under way, or the mismatch is too recent to count
  kEqual,
  kDiffers,       // the requested inventory did not correct the mismatch
  kBeganToDiffer  // the caller must request an inventory
};

// The effect of an update or an inventory.
struct InventoryChange {
  bool inventory_wanted = false;          // an update was missed
  std::vector<std::string> gone;          // replica ids
  std::vector<std::string> artifacts;     // artifacts with a replica in the report
  std::vector<std::string> unknown = {};  // reported artifacts that the catalog does not know
};

class Inventory {
 public:
  using Replicas = std::map<std::string, HeldReplica, std::less<>>;  // by id
  using Holders = std::set<std::pair<std::string, std::string>>;     // node id, replica id
  // An absent node and the artifacts of its last report. The node may return with these artifacts.
  struct AwayNode {
    std::string name;
    SteadyTime since;
    std::set<std::string, std::less<>> artifacts;
  };

  Inventory(const Membership& nodes, const Catalog& catalog) : nodes_(nodes), catalog_(catalog) {}

  // Call Suspend before and Admit after each registration of a node. After Admit the node's inventory is
  // wanted.
  void Suspend(std::string_view node_id);
  void Admit(const Node& node);
  // Remembers the artifacts that the node could serve. Call this before the node is removed.
  void Remove(const Node& node, SteadyTime now);

  // INVALID_ARGUMENT, with the reason: the store refuses this replica from this node.
  static absl::Status Check(const std::string& node_id, const ReplicaInfo& replica);
  // Applies an update. Leaves out replicas that Check refuses.
  InventoryChange Update(const std::string& node_id, uint64_t sequence,
                         const std::vector<ReplicaInfo>& replicas);
  // Replaces all known replicas of the node. An inventory older than the last update changes nothing; then
  // `inventory_wanted` is set.
  InventoryChange Reconcile(const std::string& node_id, uint64_t sequence,
                            const std::vector<ReplicaInfo>& replicas, SteadyTime now);
  // Adds the replica of a publication, or a replica that a request for sources fills. The node's own updates
  // take precedence.
  void AddPublished(const std::string& node_id, const ReplicaInfo& replica);
  // Records the sequence of the node's last update, from a heartbeat. Returns whether an inventory is wanted.
  bool NoteSequence(const std::string& node_id, uint64_t sequence);
  // Compares a heartbeat with the listed replicas. `digest`: over the replicas that the node holds at
  // `sequence` (core/replica/inventory_digest.h).
  InventoryMatch Compare(const std::string& node_id, uint64_t sequence, uint64_t digest, SteadyTime now);
  // The digest over the listed replicas of the node.
  uint64_t DigestOf(std::string_view node_id) const;
  void Want(const std::string& node_id) { held_.find(node_id)->second.wanted = true; }
  // Runs `change` on a replica and updates the index of sources.
  void Change(const ReplicaName& name, absl::FunctionRef<void(HeldReplica&)> change);
  void ExpireAway(SteadyTime now);

  // Null: the node has no replica with this id.
  const HeldReplica* Find(std::string_view node_id, std::string_view replica_id) const;
  const Replicas& ReplicasOf(std::string_view node_id) const;
  // The replicas of the artifact, in any state.
  const Holders& HoldersOf(std::string_view artifact_id) const;
  // Calls `visit` for each replica of the artifact until `visit` returns false.
  void ForEach(std::string_view artifact_id,
               absl::FunctionRef<bool(const Node&, const HeldReplica&)> visit) const;
  // Visits the sources of the artifact on one node.
  void ForEachOf(std::string_view artifact_id, std::string_view node_id,
                 absl::FunctionRef<void(const SourceRef&)> visit) const;
  const SourceIndex& sources() const { return sources_; }
  // The artifact's first replica on the node for which `fits` holds; null: none.
  const HeldReplica* FindOf(std::string_view artifact_id, std::string_view node_id,
                            absl::FunctionRef<bool(const HeldReplica&)> fits) const;
  // A ready replica in host memory, even if its node may evict it; null: none.
  const HeldReplica* FindInMemory(std::string_view artifact_id, std::string_view node_id) const;
  // The replica that is filling at this location; null: none. The caller may change its pace (pace.h).
  HeldReplica* FindFilling(std::string_view artifact_id, std::string_view node_id, const Location& location);

  // Whether the node's inventory arrived since the node registered.
  bool HasReported(std::string_view node_id) const { return held_.find(node_id)->second.reported; }
  // By node id.
  const absl::btree_map<std::string, AwayNode>& away() const { return away_; }
  bool IsAwayWith(std::string_view artifact_id) const;
  // The deleted artifacts of which the node has replicas; the node must drop them.
  std::vector<std::string> ForgottenOn(std::string_view node_id) const;
  uint64_t size() const { return replicas_; }
  // Visits every replica.
  std::map<std::pair<LocationKind, ReplicaState>, uint64_t> CountByState() const;

 private:
  friend class DirectoryInvariants;  // tests

  // The last replicas that the node reported as removed, by hashes of their ids. A publication or a request
  // that was under way meanwhile must not list these replicas again. A node never uses an id again.
  class Removed {
   public:
    void Note(std::string_view replica_id) { hashes_[next_++ % hashes_.size()] = HashOf(replica_id); }
    bool Contains(std::string_view replica_id) const {
      return std::ranges::find(hashes_, HashOf(replica_id)) != hashes_.end();
    }

   private:
    static size_t HashOf(std::string_view replica_id) { return absl::HashOf(replica_id); }

    std::array<size_t, 64> hashes_ = {};
    size_t next_ = 0;
  };

  struct Held {
    const Node* node = nullptr;
    Replicas replicas;               // the index of sources points at these
    uint64_t sequence = 0;           // of the last applied change
    uint64_t reported_sequence = 0;  // in the last heartbeat; must arrive before the next heartbeat
    bool wanted = true;
    bool reported = false;  // its inventory arrived since it registered
    uint64_t digest = 0;    // over `replicas`
    Removed removed;
    // The mismatch that the node's heartbeats have shown since `doubted_since`.
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
