// The memory of the host pool: sealed memfds, mapped one after the other, and the threads that pre-fault
// them. Private to this folder.
#pragma once

#include <fcntl.h>

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
#include "core/memory/segments.h"

namespace tensorcast {

// FUTURE_WRITE keeps the existing mapping writable and makes every later mapping read-only, even one that a
// process makes through /proc/<pid>/fd (memfd_create(2), fcntl(2)).
inline constexpr int kPoolSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

// Assigns a segment to each position in a pool of `bytes`: a kept segment that fits, or a new one (no name).
std::vector<KeptSegment> PlaceKept(uint64_t bytes, uint64_t segment_bytes, std::vector<KeptSegment> kept);

// Owns the descriptors and the mapping. Movable. Accessors are thread-safe.
class SharedRegion {
 public:
  // Huge pages have 2 MiB. kHugeWhereMade: transparent huge pages, as far as the kernel makes them during
  // pre-faulting. kHugeSetAside: huge pages that the host has reserved.
  enum class Pages : uint8_t { kOrdinary, kHugeWhereMade, kHugeSetAside };

  // `bytes` and `segment_bytes` are positive multiples of 2 MiB. With kHugeSetAside, Create fails unless the
  // host has enough reserved huge pages for all new segments.
  //
  // `places[i]` describes segment i; segments after the last element are new segments. An element with a
  // descriptor is a segment of the right size that another process made and sealed. It is mapped only for
  // reading; on success the region takes the descriptor. An element with only a name is a new segment that is
  // not pre-faulted. `numa_nodes` are the NUMA nodes of new segments, in turn; if empty, the kernel chooses.
  static absl::StatusOr<SharedRegion> Create(uint64_t bytes, uint64_t segment_bytes, Pages pages,
                                             std::vector<KeptSegment>& places,
                                             const std::vector<int>& numa_nodes = {});

  // Puts a new segment, writable and without pages, in the place of a kept one. The descriptor's number stays
  // the same and then refers to the new segment. REQUIRES: no thread reads that segment. Thread-safe for
  // different segments.
  absl::Status Replace(size_t segment);

  std::byte* base() const { return mapping_.base(); }
  uint64_t bytes() const { return mapping_.bytes(); }
  // The size of each segment but the last, which may be smaller.
  uint64_t segment_bytes() const { return segment_bytes_; }
  size_t segments() const { return fds_.size(); }
  int fd(size_t segment) const { return fds_[segment].get(); }
  Pages pages() const { return pages_; }
  uint64_t bytes_at(size_t segment) const;
  // The kind of the segment when the region was made. Only kOwn segments are pre-faulted.
  SegmentKind first_kind(size_t segment) const { return kinds_[segment]; }

 private:
  SharedRegion(ReservedRange mapping, uint64_t segment_bytes, Pages pages, std::vector<int> numa_nodes)
      : mapping_(std::move(mapping)),
        segment_bytes_(segment_bytes),
        pages_(pages),
        numa_nodes_(std::move(numa_nodes)) {}
  absl::StatusOr<UniqueFd> MakeSegment(size_t segment, bool set_aside);

  ReservedRange mapping_;
  uint64_t segment_bytes_;
  Pages pages_;
  std::vector<int> numa_nodes_;
  std::vector<UniqueFd> fds_;
  std::vector<SegmentKind> kinds_;
};

// Touches every page of a region in the background, so that later users do not wait for page faults. Changes
// no byte, so the region may be in use at the same time. If memory runs out, the Prefaulter logs an error
// and stops; the remaining pages appear at first touch. Thread-safe.
class Prefaulter {
 public:
  // `region` must outlive this object. With 0 threads complete() stays false.
  Prefaulter(const SharedRegion& region, int threads);
  // Stops the threads within some milliseconds.
  ~Prefaulter();

  bool complete() const { return complete_.load(std::memory_order_acquire); }
  // Blocks until every thread has ended.
  void Wait();

 private:
  void Run();
  absl::Status Populate(uint64_t offset, uint64_t bytes);
  absl::Status PopulateIn(size_t segment, uint64_t offset, uint64_t bytes);
  // Allocates the pages of the segment's file. Returns 0, or an errno.
  int PopulateFile(size_t segment, uint64_t offset, uint64_t bytes);

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
