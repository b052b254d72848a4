// Wraps a source with reads that may never end, such as files on a file system that another process serves.
// Each fetch runs on its own thread and into its own buffer. When the caller's context ends, the fetch
// returns and the caller's memory is free again; a hanging read keeps only that thread, that buffer and the
// inner source. Thread-safe.
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
  // `inside` fetches into host memory, and must not depend on other objects' lifetime.
  explicit DetachedSource(std::shared_ptr<ChunkSource> inside) : inside_(std::move(inside)) {}
  ~DetachedSource() override;

  // The observer hears when a fetch is slow, and when no fetch is slow any more, on the fetching threads.
  // Call it before the first fetch.
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
