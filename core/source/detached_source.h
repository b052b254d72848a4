// A source with reads that may never end: of files on a file system that another process serves. Each fetch
// runs on its own thread, into a buffer of its own, so that the caller goes on when its context ends, and
// the memory that it gave is free again. What hangs keeps that thread, that buffer and the source inside.
// Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class DetachedSource final : public ChunkSource {
 public:
  // `inside` fetches into host memory, and needs nothing but itself.
  explicit DetachedSource(std::shared_ptr<ChunkSource> inside) : inside_(std::move(inside)) {}
  ~DetachedSource() override;

  // What to tell when a fetch is slow, and when none is any more; on the threads that fetch. Before the first
  // fetch.
  void ObserveWaits(WaitObserver observer) { observer_ = std::move(observer); }

  const SourceInfo& info() const override { return inside_->info(); }
  int max_concurrency() const override { return inside_->max_concurrency(); }
  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override;

 private:
  void NoteSlow(bool slow);

  std::shared_ptr<ChunkSource> inside_;
  WaitObserver observer_;
  absl::Mutex mutex_;
  int slow_ ABSL_GUARDED_BY(mutex_) = 0;  // fetches
};

}  // namespace tensorcast
