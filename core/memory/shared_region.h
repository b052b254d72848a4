// The memory of the host pool: one sealed memfd with its writable mapping, and the threads that give it its
// pages. Private to this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast {

// Owns the descriptor and the mapping. Movable; immutable once made, so its accessors are thread-safe.
class SharedRegion {
 public:
  // `bytes` is a positive multiple of 2 MiB. `huge_pages` are 2 MiB ones that the host has set aside; all of
  // them are reserved here, or this fails.
  static absl::StatusOr<SharedRegion> Create(uint64_t bytes, bool huge_pages);

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&& other) noexcept;
  ~SharedRegion();

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  bool huge_pages() const { return huge_pages_; }

 private:
  SharedRegion(int fd, uint64_t bytes, bool huge_pages) : fd_(fd), bytes_(bytes), huge_pages_(huge_pages) {}
  absl::Status SizeMapAndSeal();

  int fd_ = -1;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  bool huge_pages_ = false;
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
