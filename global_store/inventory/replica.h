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
  bool evicting = false;                                // its node may evict it: it is not a copy
  bool corrupt = false;                                 // accused, and not cleared (accusations.h)
  std::set<std::string> accusers = {};                  // names of the nodes that accuse it
  std::set<std::string> readers = {};                   // names of the nodes that found it right
  SteadyTime digested_by = SteadyTime::InfinitePast();  // the holder must digest it again by this time
  // Used while the replica fills.
  LookSchedule looks = {};
  HostmatePatience hostmates = {};

  bool IsReady() const { return facts.state == ReplicaState::kReady && !evicting && !corrupt; }
  // The holder reports the replica as whole and verified. It may be accused. Its eviction needs the checks of
  // a last copy.
  bool Matters() const {
    return facts.state == ReplicaState::kReady && !evicting && facts.chunks_unverified == 0;
  }
  // The replica is whole, verified and not accused: it serves, and counts as a copy.
  bool IsSource() const { return IsReady() && facts.chunks_unverified == 0; }
  // The replica serves the chunks that it has, and never counts as a copy. It is in host memory, and partial
  // or filling. A first ingest does not serve: it has no artifact id yet.
  bool ServesParts() const {
    return (facts.state == ReplicaState::kFilling || IsPartial()) &&
           facts.location.kind == LocationKind::kCpu && !facts.artifact_id.empty() && !evicting && !corrupt;
  }
  // No transfer brings the missing chunks, so no receiver waits for the replica.
  bool IsPartial() const { return facts.state == ReplicaState::kPartial; }
  bool CanServe() const { return IsSource() || ServesParts(); }
  bool IsFilling() const {
    return (facts.state == ReplicaState::kAllocating || facts.state == ReplicaState::kFilling) && !evicting &&
           !corrupt;
  }
};

// Whether `names` has the replica's id, or its NODE_ID/REPLICA_ID.
bool Names(const std::vector<std::string>& names, const ReplicaInfo& replica);

// Names a replica. Replica ids are unique only within a node.
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

// A replica or an origin that counts as a copy after its node has proven that it has the bytes.
struct CopyToProve {
  // The replica id is empty for files, and the first URI for shared objects.
  ReplicaName replica;
  std::string node_name;
  std::string grpc_address;           // of the node
  std::optional<Origin> origin = {};  // set for files and shared objects
};

// The copies of one artifact; one proven copy is enough.
struct CopiesToProve {
  std::string artifact_id;
  uint64_t image_bytes = 0;
  CopyToProve evicting;  // the replica to evict; the answers for `copies` must equal its answer
  std::vector<CopyToProve> copies;
};

// The answers to the requests for proofs.
struct Proofs {
  std::vector<ReplicaName> proven;
  std::vector<ReplicaName> unproven;  // no answer, or a wrong answer
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
