// Advancing a replica: an ingest to host memory that writes its image over that of an earlier version, so
// that one image is held instead of two.
//
//   earlier version ──retired (core/replicas)──► its memory ──chunk by chunk──► the wanted version's replica
//
// Each chunk is made in a staging buffer, compared with the wanted version's digest, and only then written
// over the old one. Chunks that are equal in both versions are compared where they are, and stay. So a chunk
// is old or new at any moment, and only new ones are served. Once the earlier version has been retired there
// is no way back: where the ingest fails, what is new stays as a partial replica.
//
// Its requester makes one and gives it to the ingest and to the sources that need the old bytes. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

// In reports: the earlier version that was advanced, by its artifact id, with the chunks that stayed; or,
// with an error, that it was not.
inline constexpr std::string_view kAdvanceLane = "advance";

class Advance {
 public:
  // Of the replica of `base_id` in host memory, which is cut like the wanted version's image. `required`:
  // where it cannot be advanced the ingest fails with the reason; else the wanted version is made beside it.
  Advance(std::string base_id, bool required) : base_id_(std::move(base_id)), required_(required) {}

  const std::string& base_id() const { return base_id_; }
  bool required() const { return required_; }

  // While the ingest writes over it: a chunk that is not in its place yet is the earlier version's there.
  // Null before, afterwards, and where it is not advanced.
  std::shared_ptr<const RetiredReplica> base() const {
    absl::MutexLock lock(&mutex_);
    return base_;
  }

  // The ingest's.
  void Begin(RetiredReplica base) {
    absl::MutexLock lock(&mutex_);
    base_ = std::make_shared<const RetiredReplica>(std::move(base));
  }
  void End() {
    std::shared_ptr<const RetiredReplica> ended;  // its memory may go with it, without the lock
    absl::MutexLock lock(&mutex_);
    ended.swap(base_);
  }

 private:
  const std::string base_id_;
  const bool required_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const RetiredReplica> base_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
