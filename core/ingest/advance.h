// An ingest advances a replica when it writes the image of a wanted version over the image of an earlier
// version. So the memory holds one image instead of two. The memory is host memory or the memory of a GPU.
//
//   earlier version ──retired (core/replicas)──► its memory ──chunk by chunk──► the wanted version's replica
//
// The ingest makes each chunk in a staging buffer, compares the chunk with the wanted version's digest, and
// then writes the chunk over the old chunk. A chunk that comes to a GPU without passing through host memory
// (chunk_path.h) is compared only after the chunk is in its place. Chunks that are equal in both versions
// stay in place. A peer gets a chunk only after the chunk was compared with the wanted version.
//
// The retirement of the earlier version is final. If the ingest fails afterwards, host memory keeps the new
// chunks as a partial replica, and a GPU keeps nothing.
//
// With a gate (core/replicas/commit_gate.h), processes may be attached to the replica. There are three steps:
//   1. The ingest makes and verifies each chunk, and keeps the values that differ from the earlier version
//      (scatter_plan.h). The earlier version does not change.
//   2. When all holders are in the gate, the ingest retires the replica.
//   3. The kept values are written over the replica.
// An error in step 1 or 2 leaves the replica unchanged. Step 3 can fail only on a GPU: the ingest then fails,
// and the replica is lost.
//
// The code that requests an ingest passes one Advance to the ingest and to the sources that need the old
// bytes. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/ingest/ingest_request.h"
#include "core/replicas/commit_gate.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

// The lane of the earlier version in transfer reports. The source's name is the artifact id of the earlier
// version. The report has the number of chunks that stayed, or the error that prevented the advance.
inline constexpr std::string_view kAdvanceLane = "advance";

class Advance {
 public:
  // Advances the replica of the artifact `base_id` at the ingest's location. Both versions must have the same
  // image size and chunk size. If the location has no replica of `base_id`, the new version gets new memory.
  // If the location has a replica of `base_id` that cannot be advanced, a `required` advance fails the
  // ingest, and any other advance uses new memory.
  Advance(std::string base_id, bool required) : base_id_(std::move(base_id)), required_(required) {}
  // A required advance of the replica `held_replica`. The replica is retired when all its holders are in
  // `gate`. If the location already has a replica of the wanted version, the ingest uses that replica as a
  // source, and then replaces that replica with the advanced replica.
  Advance(std::string base_id, std::string held_replica, std::shared_ptr<CommitGate> gate)
      : base_id_(std::move(base_id)),
        held_replica_(std::move(held_replica)),
        required_(true),
        gate_(std::move(gate)) {}

  const std::string& base_id() const { return base_id_; }
  // The id of the attached replica; empty without a gate.
  const std::string& held_replica() const { return held_replica_; }
  bool required() const { return required_; }
  CommitGate* gate() const { return gate_.get(); }  // null: no process may have the replica attached

  // The earlier version while the ingest writes over it. Chunks that are not written yet have the bytes of
  // the earlier version. Null at other times, and if no replica is advanced.
  std::shared_ptr<const RetiredReplica> base() const {
    absl::MutexLock lock(&mutex_);
    return base_;
  }

  // Only the ingest calls Begin and End.
  void Begin(RetiredReplica base) {
    absl::MutexLock lock(&mutex_);
    base_ = std::make_shared<const RetiredReplica>(std::move(base));
  }
  void End() {
    std::shared_ptr<const RetiredReplica> ended;  // may free the memory, so it ends without the lock
    absl::MutexLock lock(&mutex_);
    ended.swap(base_);
  }

 private:
  const std::string base_id_;
  const std::string held_replica_;
  const bool required_;
  const std::shared_ptr<CommitGate> gate_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const RetiredReplica> base_ ABSL_GUARDED_BY(mutex_);
};

// The id of the replica under live leases that the ingest writes over; empty if there is none.
inline std::string HeldReplicaOf(const IngestRequest& request) {
  return request.advance != nullptr ? request.advance->held_replica() : std::string();
}

}  // namespace tensorcast
