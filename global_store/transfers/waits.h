// What will make a source: what each receiver was told to wait for, which nodes are about to fill a replica,
// and which read the files of an import, or a shared origin.
//
// Replicas that fill may wait for each other. So a receiver is told to wait for a node only where that one's
// own sources and waits lead, without the receiver, to a node that can make the bytes (IsRooted). So no chain
// of waits is closed.
//
// Soft state. Reads membership, inventory and grants, which must outlive it. Thread-compatible.
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
  // What a receiver was told to wait for, until it asks again, or should have and has no replica that fills.
  struct Waiting {
    std::vector<std::string> nodes;  // any of them
    bool reports = false;            // or nodes that have yet to report
    SteadyTime until;
  };
  // An origin that is read for other nodes, or could not be.
  struct Reading {
    std::string error;  // empty: it is under way
    SteadyTime until;   // from then on it is as if it had not been tried
    bool IsUnderWay(SteadyTime now) const { return until > now && error.empty(); }
    bool HasFailed(SteadyTime now) const { return until > now && !error.empty(); }
  };
  // A node that reads a shared origin: while its replica fills, or until it should have reported that.
  struct Reader {
    uint32_t share = 0;
    SteadyTime until;
  };
  using Beginning = std::map<std::string, SteadyTime>;  // node id -> believed until
  // A search for a root, on behalf of one receiver at one moment.
  struct Search {
    const Node* receiver = nullptr;
    SteadyTime now;
    absl::flat_hash_set<const Node*> rooted = {};  // found so far
    absl::flat_hash_set<const Node*> seen = {};    // since `seen` was cleared last
  };

  Waits(const Membership& nodes, const Inventory& inventory, const Grants& grants)
      : nodes_(nodes), inventory_(inventory), grants_(grants) {}

  void Begin(const std::string& artifact_id, const std::string& node_id, Waiting waiting) {
    waiting_[artifact_id][node_id] = std::move(waiting);
  }
  // It does not wait any more, as far as is known.
  void End(std::string_view artifact_id, std::string_view node_id);
  // Null: it was not told to wait, or does not wait any more.
  const Waiting* Find(std::string_view artifact_id, std::string_view node_id, SteadyTime now) const;

  // The node was just told where to fill a replica from. Until it has reported that, no receiver would see
  // that one is coming.
  void NoteFills(const std::string& artifact_id, const std::string& node_id, SteadyTime now);
  void NoteReported(std::string_view artifact_id, const std::string& node_id);
  const Beginning& BeginningOf(std::string_view artifact_id) const;

  // Of an artifact's origin on that node; made where there is none.
  Reading& ReadingOf(const std::string& artifact_id, const std::string& node_id) {
    return readings_[artifact_id][node_id];
  }
  // How it went to have an origin read.
  void NoteReading(const std::string& artifact_id, const std::string& node_id, const absl::Status& read,
                   SteadyTime now);
  // The artifact is gone.
  void ForgetReadings(const std::string& artifact_id) { readings_.erase(artifact_id); }

  // The node reads a shared origin of the artifact from now on, or still. Returns its share: the lowest that
  // no other reader has, or kMaxReaders where there is none.
  uint32_t NoteReads(const std::string& artifact_id, const std::string& node_id, SteadyTime now);
  void EndReads(std::string_view artifact_id, std::string_view node_id);
  bool Reads(std::string_view artifact_id, std::string_view node_id, SteadyTime now) const;

  // Whether a chain of grants, and of what nodes without grants were told to wait for, leads from this node
  // to one that can make the bytes without the receiver.
  bool IsRooted(const Node& node, std::string_view artifact_id, Search& search) const;
  // Its waits alone, without its grants.
  bool LeadsOn(const Node& node, std::string_view artifact_id, Search& search) const;
  void Tick(SteadyTime now);

  // So many nodes read a shared origin of an artifact at a time. Others have the chunks from those.
  static constexpr uint32_t kMaxReaders = 16;

 private:
  friend class DirectoryInvariants;  // tests

  bool FillsAt(std::string_view artifact_id, std::string_view node_id) const;
  // Whether the node has it, or makes it from what it has, or is about to ask for it.
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
