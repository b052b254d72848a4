// Future sources: the nodes that each receiver was told to wait for, the nodes that are about to fill a
// replica, and the nodes that read the files of an import or a shared origin.
//
// Filling replicas may wait for each other. Therefore a receiver is told to wait for a node only if the
// sources and waits of that node lead, without the receiver, to a node that can make the bytes (IsRooted). So
// no chain of waits is circular.
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
  // The nodes that a receiver was told to wait for. Ends when the receiver asks again, or when it is late to
  // ask and has no filling replica.
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
  // A node that reads a shared origin. It counts while its replica fills, or until `until`, by when it should
  // have reported the replica.
  struct Reader {
    uint32_t share = 0;
    SteadyTime until;
  };
  using Beginning = std::map<std::string, SteadyTime>;  // node id -> until when it is assumed to fill
  // A search for a root, on behalf of one receiver at one moment.
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

  // Call this when a node was just given sources to fill a replica. Until it reports the replica, this is the
  // only record that a replica is coming.
  void NoteFills(const std::string& artifact_id, const std::string& node_id, SteadyTime now);
  void NoteReported(std::string_view artifact_id, const std::string& node_id);
  const Beginning& BeginningOf(std::string_view artifact_id) const;

  // The entry for the read of an artifact's origin on that node; made if missing.
  Reading& ReadingOf(const std::string& artifact_id, const std::string& node_id) {
    return readings_[artifact_id][node_id];
  }
  // Records the outcome of reading an origin.
  void NoteReading(const std::string& artifact_id, const std::string& node_id, const absl::Status& read,
                   SteadyTime now);
  // Call this when the artifact is gone.
  void ForgetReadings(const std::string& artifact_id) { readings_.erase(artifact_id); }

  // Records that the node reads, or still reads, a shared origin of the artifact. Returns its share: the
  // lowest share without a reader, or kMaxReaders if all are taken.
  uint32_t NoteReads(const std::string& artifact_id, const std::string& node_id, SteadyTime now);
  void EndReads(std::string_view artifact_id, std::string_view node_id);
  bool Reads(std::string_view artifact_id, std::string_view node_id, SteadyTime now) const;

  // Whether a chain leads from this node to a node that can make the bytes, without the receiver of `search`.
  // A step leads from a node to the source of one of its grants. If the node has no grant, a step leads to a
  // node that it was told to wait for.
  bool IsRooted(const Node& node, std::string_view artifact_id, Search& search) const;
  // Like IsRooted, but the first step uses only the node's waits, not its grants.
  bool LeadsOn(const Node& node, std::string_view artifact_id, Search& search) const;
  void Tick(SteadyTime now);

  // The max number of nodes that read a shared origin of an artifact at a time. Others get the chunks from
  // them.
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
