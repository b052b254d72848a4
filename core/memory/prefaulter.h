// Touches every page of a region in the background, so that nobody pays for it later. Private to this folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/memory/shared_region.h"

namespace tensorcast {

// Changes no byte: the region may be in use meanwhile. Thread-safe. When memory runs out it logs, stops, and
// leaves the rest to first touch.
class Prefaulter {
 public:
  // `region` must outlive this object. With no threads there is nothing to wait for and complete() stays
  // false.
  Prefaulter(const SharedRegion& region, int threads);
  // Stops within a step (some milliseconds), not at the end of the region.
  ~Prefaulter();

  bool complete() const { return complete_.load(std::memory_order_acquire); }
  // Until every thread has ended, for whatever reason.
  void Wait();

 private:
  void Run();
  absl::Status Populate(uint64_t offset, uint64_t bytes);

  const SharedRegion& region_;
  std::atomic<uint64_t> next_offset_{0};
  std::atomic<uint64_t> populated_bytes_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> complete_{false};
  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace tensorcast
