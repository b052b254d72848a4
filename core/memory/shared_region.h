// The memory of the host pool: sealed memfds mapped side by side for writing, and the threads that give them
// their pages. Private to this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/unique_fd.h"
#include "core/memory/reserved_range.h"

namespace tensorcast {

// Owns the descriptors and the mapping. Movable; immutable once made, so its accessors are thread-safe.
class SharedRegion {
 public:
  // Huge ones are of 2 MiB: as far as the kernel makes them while they are pre-faulted, or those that the
  // host has set aside.
  enum class Pages : uint8_t { kOrdinary, kHugeWhereMade, kHugeSetAside };

  // `bytes` and `segment_bytes` are positive multiples of 2 MiB. All that are to be set aside are
  // reserved here, or this fails.
  static absl::StatusOr<SharedRegion> Create(uint64_t bytes, uint64_t segment_bytes, Pages pages);

  std::byte* base() const { return mapping_.base(); }
  uint64_t bytes() const { return mapping_.bytes(); }
  // All but the last one are of this size.
  uint64_t segment_bytes() const { return segment_bytes_; }
  size_t segments() const { return fds_.size(); }
  int fd(size_t segment) const { return fds_[segment].get(); }
  Pages pages() const { return pages_; }

 private:
  SharedRegion(ReservedRange mapping, uint64_t segment_bytes, Pages pages)
      : mapping_(std::move(mapping)), segment_bytes_(segment_bytes), pages_(pages) {}
  absl::Status AddSegment();

  ReservedRange mapping_;
  uint64_t segment_bytes_;
  Pages pages_;
  std::vector<UniqueFd> fds_;
};

// Touches every page of a region in the background, so that nobody pays for it later. Changes no byte: the
// region may be in use meanwhile. Thread-safe. When memory runs out it logs, stops, and leaves the rest to
// first touch.
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
  // Gives the files their pages; 0, or an errno.
  int PopulateFiles(uint64_t offset, uint64_t bytes);

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
