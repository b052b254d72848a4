// A replica as the global store holds it, and what is asked and answered about replicas as copies. Plain
// values. *Can serve* and *counts as a copy* are two predicates.
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
  bool evicting = false;                                // its node may evict it: it is counted out
  bool corrupt = false;                                 // a receiver's digests did not match (accusations.h)
  std::set<std::string> accusers = {};                  // names of the nodes that said so
  std::set<std::string> readers = {};                   // names of nodes that pulled it and found it right
  SteadyTime digested_by = SteadyTime::InfinitePast();  // its holder digests it again, until then
  // While it fills.
  LookSchedule looks = {};
  HostmatePatience hostmates = {};

  bool IsReady() const { return facts.state == ReplicaState::kReady && !evicting && !corrupt; }
  // It is whole and verified, as its holder says, whatever others say of its bytes: it is not evicted as if
  // it were worth nothing.
  bool Matters() const {
    return facts.state == ReplicaState::kReady && !evicting && facts.chunks_unverified == 0;
  }
  // It is whole, and verified: it serves, and counts as a copy.
  bool IsSource() const { return IsReady() && facts.chunks_unverified == 0; }
  // It serves what it has, and never counts as a copy: host memory that fills from a manifest which is
  // known (a first ingest names no artifact yet), or that rests as it is.
  bool ServesParts() const {
    return (facts.state == ReplicaState::kFilling || IsPartial()) &&
           facts.location.kind == LocationKind::kCpu && !facts.artifact_id.empty() && !evicting && !corrupt;
  }
  // No transfer brings the rest of it, so that it leads to no other source and no receiver waits for it.
  bool IsPartial() const { return facts.state == ReplicaState::kPartial; }
  bool CanServe() const { return IsSource() || ServesParts(); }
  bool IsFilling() const {
    return (facts.state == ReplicaState::kAllocating || facts.state == ReplicaState::kFilling) && !evicting &&
           !corrupt;
  }
};

// Whether one of the names is this replica's: its id, or its node's id, '/' and its id, which no other node
// can make its own.
bool Names(const std::vector<std::string>& names, const ReplicaInfo& replica);

// A replica by its node: ids are unique within a node only.
struct ReplicaName {
  std::string node_id;
  std::string replica_id;
  friend auto operator<=>(const ReplicaName&, const ReplicaName&) = default;
};

// An origin and where its node is asked about it.
struct OriginToCheck {
  std::string artifact_id;
  Origin origin;
  std::string grpc_address;
};

// A replica, or files, that count as a copy once their node has proven that it has the bytes; and where its
// node is asked.
struct CopyToProve {
  // Without a replica's id: the files that its node imported. Of shared objects, with their first URI as the
  // id: what the node reads there.
  ReplicaName replica;
  std::string node_name;
  std::string grpc_address;
  std::optional<Origin> origin = {};  // then
};

// The copies of one artifact, one of which is enough.
struct CopiesToProve {
  std::string artifact_id;
  uint64_t image_bytes = 0;
  CopyToProve evicting;  // the replica that is to go: its answer is what the others are compared with
  std::vector<CopyToProve> copies;
};

// What came of asking for them.
struct Proofs {
  std::vector<ReplicaName> proven;
  std::vector<ReplicaName> unproven;  // no answer, or a wrong one
};

struct EvictionDecision {
  bool granted = false;
  std::string reason = {};
  // When refused: it would be granted if one of these copies were proven. Ask again with what was found.
  CopiesToProve to_prove = {};
  // When refused: what has to end before it can be granted, for people. Empty: nothing is under way.
  std::string waiting_for = {};
  // When refused: it would be granted if one of these turned out to be intact. Look at them, note what was
  // found (Directory::NoteOrigin), and ask again.
  std::vector<OriginToCheck> unchecked_origins = {};
  // When refused: it is the last copy of a version that no key keeps. It would be granted once that artifact
  // is deleted: commit Evictions::PrepareReleaseOf, and ask again.
  bool release_first = false;
};

}  // namespace tensorcast::global_store
