// Wraps a source for which a read may never end, such as files on a file system that another process serves.
// Each fetch runs on a separate thread and into a separate buffer. When the caller's context ends, Fetch
// returns and the caller may use its memory again. A hanging read occupies only its thread, its buffer and
// the inner source. Thread-safe.
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
  // The source `inside` must fetch into host memory. It may outlive this object, so it must own all it uses.
  explicit DetachedSource(std::shared_ptr<ChunkSource> inside) : inside_(std::move(inside)) {}
  ~DetachedSource() override;

  // The observer is called when a fetch becomes slow (kSlowAside in base/aside.h), and with an empty text
  // when no fetch is slow. It runs on the threads that call Fetch, one call at a time. Set it before the
  // first fetch.
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
  int slow_ ABSL_GUARDED_BY(mutex_) = 0;             // the number of slow fetches
  bool told_slow_ ABSL_GUARDED_BY(mutex_) = false;   // what the observer was told last
  bool is_telling_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is calling the observer
};

}  // namespace tensorcast
