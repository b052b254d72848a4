// Future sources: the nodes that receivers wait for, the nodes that are about to fill a replica, and the
// nodes that read an origin.
//
// Filling replicas may wait for each other, but never in a circle: a receiver waits only for rooted nodes
// (IsRooted).
//
// Soft state. Reads membership, inventory and grants, which must outlive this object. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "base/steady_time.h"
#include "global_store/inventory/inventory.h"
#include "global_store/transfers/grants.h"

namespace tensorcast::global_store {

class Waits {
 public:
  // The nodes that a receiver was told to wait for. The wait ends when the receiver asks again. It also ends
  // after `until`, if the receiver has no filling replica.
  struct Waiting {
    std::vector<std::string> nodes;  // the receiver waits for any of these
    bool reports = false;            // the receiver waits for nodes that have not reported yet
    SteadyTime until;
  };
  // The read of an origin for other nodes, or its failure.
  struct Reading {
    std::string error;  // empty: the read is under way
    SteadyTime until;   // after this time the origin counts as not tried
    bool IsUnderWay(SteadyTime now) const { return until > now && error.empty(); }
    bool HasFailed(SteadyTime now) const { return until > now && !error.empty(); }
  };
  // A node that reads a shared origin. It counts as a reader until `until`, and while its replica fills.
  struct Reader {
    uint32_t share = 0;
    SteadyTime until;
  };
  using Beginning = std::map<std::string, SteadyTime>;  // node id -> time until which it counts as filling
  // The state of a search by IsRooted, for one receiver at one time.
  struct Search {
    const Node* receiver = nullptr;
    SteadyTime now;
    absl::flat_hash_set<const Node*> rooted = {};  // nodes found to be rooted
    absl::flat_hash_set<const Node*> seen = {};    // nodes visited since `seen` was last cleared
  };

  Waits(const Membership& nodes, const Inventory& inventory, const Grants& grants)
      : nodes_(nodes), inventory_(inventory), grants_(grants) {}

  void Begin(const std::string& artifact_id, const std::string& node_id, Waiting waiting) {
    waiting_[artifact_id][node_id] = std::move(waiting);
  }
  // The receiver no longer waits.
  void End(std::string_view artifact_id, std::string_view node_id);
  // Null: the node does not wait.
  const Waiting* Find(std::string_view artifact_id, std::string_view node_id, SteadyTime now) const;

  // Call this when a node was just given sources to fill a replica. The node counts as filling until it
  // reports the replica, at most for some seconds.
  void NoteFills(const std::string& artifact_id, const std::string& node_id, SteadyTime now);
  void NoteReported(std::string_view artifact_id, const std::string& node_id);
  const Beginning& BeginningOf(std::string_view artifact_id) const;

  // The entry for the read of an artifact's origin on that node. Adds the entry if it is missing.
  Reading& ReadingOf(const std::string& artifact_id, const std::string& node_id) {
    return readings_[artifact_id][node_id];
  }
  // Records the outcome of reading an origin.
  void NoteReading(const std::string& artifact_id, const std::string& node_id, const absl::Status& read,
                   SteadyTime now);
  // Call this when the artifact is gone.
  void ForgetReadings(const std::string& artifact_id) { readings_.erase(artifact_id); }

  // Records that the node reads, or still reads, a shared origin of the artifact. Returns the node's share. A
  // new reader gets the lowest share without a reader; kMaxReaders: all shares have readers.
  uint32_t NoteReads(const std::string& artifact_id, const std::string& node_id, SteadyTime now);
  void EndReads(std::string_view artifact_id, std::string_view node_id);
  bool Reads(std::string_view artifact_id, std::string_view node_id, SteadyTime now) const;

  // Whether the node is rooted: a chain leads from this node to a node that can make the bytes, and does not
  // contain the receiver of `search`. A step leads from a node to the source of one of its grants. For a node
  // without grants, a step leads to a node that it was told to wait for.
  bool IsRooted(const Node& node, std::string_view artifact_id, Search& search) const;
  // Like IsRooted, but the first step uses the node's waits instead of its grants.
  bool LeadsOn(const Node& node, std::string_view artifact_id, Search& search) const;
  void Tick(SteadyTime now);

  // The max number of nodes that read a shared origin of an artifact at a time.
  static constexpr uint32_t kMaxReaders = 16;

 private:
  friend class DirectoryInvariants;  // tests

  bool FillsAt(std::string_view artifact_id, std::string_view node_id) const;
  // Whether the node has the artifact, makes it from local data, or is about to ask for sources.
  bool HasOwnWay(std::string_view artifact_id, const Node& node, SteadyTime now) const;

  const Membership& nodes_;
  const Inventory& inventory_;
  const Grants& grants_;
  // By artifact id, then node id.
  absl::flat_hash_map<std::string, std::map<std::string, Waiting, std::less<>>> waiting_;
  absl::flat_hash_map<std::string, Beginning> beginning_;
  absl::flat_hash_map<std::string, std::map<std::string, Reading, std::less<>>> readings_;
  absl::flat_hash_map<std::string, std::map<std::string, Reader, std::less<>>> readers_;
};

}  // namespace tensorcast::global_store
