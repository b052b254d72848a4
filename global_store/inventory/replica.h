// A replica in the global store, and the requests and answers about replicas as copies. Plain values. *Can
// serve* (CanServe) and *counts as a copy* (IsSource) are two predicates.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/steady_time.h"
#include "core/replica/replica.h"
#include "global_store/catalog/facts.h"
#include "global_store/scheduler/pace.h"

namespace tensorcast::global_store {

struct HeldReplica {
  ReplicaInfo facts;
  bool evicting = false;                                // its node may evict it, so it does not count
  bool corrupt = false;                                 // a receiver's digests did not match (accusations.h)
  std::set<std::string> accusers = {};                  // names of the nodes that reported this
  std::set<std::string> readers = {};                   // names of nodes that pulled it and found it right
  SteadyTime digested_by = SteadyTime::InfinitePast();  // the holder must digest it again by this time
  // Used while it fills.
  LookSchedule looks = {};
  HostmatePatience hostmates = {};

  bool IsReady() const { return facts.state == ReplicaState::kReady && !evicting && !corrupt; }
  // According to its holder it is whole and verified, even if other nodes accuse it. So its eviction needs
  // the checks of a last copy.
  bool Matters() const {
    return facts.state == ReplicaState::kReady && !evicting && facts.chunks_unverified == 0;
  }
  // It is whole, verified and not accused: it serves, and counts as a copy.
  bool IsSource() const { return IsReady() && facts.chunks_unverified == 0; }
  // It serves the chunks that it has, and never counts as a copy. It is in host memory, and partial or
  // filling; a first ingest, which has no artifact id yet, does not serve.
  bool ServesParts() const {
    return (facts.state == ReplicaState::kFilling || IsPartial()) &&
           facts.location.kind == LocationKind::kCpu && !facts.artifact_id.empty() && !evicting && !corrupt;
  }
  // No transfer brings the rest of it, so no receiver waits for it.
  bool IsPartial() const { return facts.state == ReplicaState::kPartial; }
  bool CanServe() const { return IsSource() || ServesParts(); }
  bool IsFilling() const {
    return (facts.state == ReplicaState::kAllocating || facts.state == ReplicaState::kFilling) && !evicting &&
           !corrupt;
  }
};

// Whether one of the names is this replica's: its id, or NODE_ID/REPLICA_ID, which no other node can claim.
bool Names(const std::vector<std::string>& names, const ReplicaInfo& replica);

// A replica by its node: ids are unique only within a node.
struct ReplicaName {
  std::string node_id;
  std::string replica_id;
  friend auto operator<=>(const ReplicaName&, const ReplicaName&) = default;
};

// An origin, and the address of the node to ask about it.
struct OriginToCheck {
  std::string artifact_id;
  Origin origin;
  std::string grpc_address;
};

// A replica, or imported files, that count as a copy after their node has proven that it has the bytes; and
// the address of that node.
struct CopyToProve {
  // An empty replica id stands for the files that the node imported. For shared objects the id is their first
  // URI, and the node reads them.
  ReplicaName replica;
  std::string node_name;
  std::string grpc_address;
  std::optional<Origin> origin = {};  // set for files and shared objects
};

// The copies of one artifact; one proven copy is enough.
struct CopiesToProve {
  std::string artifact_id;
  uint64_t image_bytes = 0;
  CopyToProve evicting;  // the replica to evict; other answers are compared with its answer
  std::vector<CopyToProve> copies;
};

// The answers to the requests for proofs.
struct Proofs {
  std::vector<ReplicaName> proven;
  std::vector<ReplicaName> unproven;  // no answer, or a wrong one
};

struct EvictionDecision {
  bool granted = false;
  std::string reason = {};
  // When refused: the eviction would be granted if one of these copies were proven. Ask again with the
  // proofs.
  CopiesToProve to_prove = {};
  // When refused, for people: what has to end before the eviction can be granted. Empty: nothing is under
  // way.
  std::string waiting_for = {};
  // When refused: the eviction would be granted if one of these origins were intact. Check them, record the
  // findings (Directory::NoteOrigin), and ask again.
  std::vector<OriginToCheck> unchecked_origins = {};
  // When refused: the replica is the last copy of a version that no key keeps. The eviction would be granted
  // after the artifact is deleted: commit Evictions::PrepareReleaseOf, and ask again.
  bool release_first = false;
};

}  // namespace tensorcast::global_store
