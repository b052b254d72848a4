// To advance a replica is to run an ingest, to host memory or to a GPU, that writes its image over the image
// of an earlier version. So the memory holds one image instead of two.
//
//   earlier version ──retired (core/replicas)──► its memory ──chunk by chunk──► the wanted version's replica
//
// Each chunk is made in a staging buffer, compared with the wanted version's digest, and only then written
// over the old chunk. Chunks that are equal in both versions are compared in place and stay. A chunk is
// always either old or new, and only new chunks are served. The retirement of the earlier version is final:
// if the ingest fails afterwards, host memory keeps the new chunks as a partial replica, and a GPU keeps
// nothing. A chunk that comes to a GPU without passing through host memory (chunk_path.h) is first written
// over the old chunk, and then compared there.
//
// With a gate (core/replicas/commit_gate.h) the replica is advanced while processes are attached to it. The
// ingest first stages the whole wanted version. For each chunk it makes and verifies the new bytes, compares
// them with the earlier version, and keeps only the changed values (scatter_plan.h); the earlier version does
// not change. When all holders are in the gate, the replica is retired, and the values are written over it;
// on a GPU, the GPU writes the values (Stream::Change). An error before the retirement leaves the replica
// unchanged. After the retirement only a GPU can fail: the ingest then fails, and the replica is lost.
//
// The code that requests the ingest makes an Advance, and passes it to the ingest and to the sources that
// need the old bytes. Thread-safe.
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

// The lane in transfer reports for the earlier version; the source's name is its artifact id. The report has
// the number of chunks that stayed, or the error because of which the earlier version was not advanced.
inline constexpr std::string_view kAdvanceLane = "advance";

class Advance {
 public:
  // Advances the replica of the artifact `base_id` at the ingest's location. Its image must have the same
  // size and chunk size as the wanted version's. If the replica cannot be advanced: with `required` the
  // ingest fails with the reason, otherwise it makes the wanted version in new memory.
  Advance(std::string base_id, bool required) : base_id_(std::move(base_id)), required_(required) {}
  // Advances the replica `held_replica`, which processes have attached, when all its holders are in `gate`.
  // The advance is required. Another replica of the wanted version at the same location is a source, and is
  // removed when the advanced replica is ready.
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

  // The earlier version while the ingest writes over it: chunks that are not written yet have this version's
  // bytes. Null before and after that time, and if no replica is advanced.
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
