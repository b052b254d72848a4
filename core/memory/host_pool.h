// The host pool: memory of pinned size that holds every host replica and every staging buffer of the daemon.
//
// The pool is a row of segments: memfds of at most 1 GiB, mapped side by side. Each segment is pre-faulted in
// the background and sealed (SHRINK | GROW | FUTURE_WRITE | SEAL). A process that gets its descriptor can map
// it only for reading, and sees no other segment.
//
// The pool hands out extents of whole 2 MiB granules: contiguous if possible, else in pieces, so an
// allocation that is not larger than the free granules never fails. Each granule counts the allocations that
// name it, so an allocation can be grown or cut into a new one while the old one stays unchanged. An
// allocation stays in one segment if possible; an extent never crosses from one segment into the next.
//
// An image of at most kMaxSmallBytes takes whole memory pages of a granule that small images share, in one
// extent. Otherwise each of thousands of adapters would take a granule. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/byte_range.h"
#include "base/config_reader.h"
#include "core/memory/extent.h"
#include "core/memory/host_allocation.h"
#include "core/memory/segments.h"

namespace tensorcast {

// The largest image that shares a granule with others.
inline constexpr uint64_t kMaxSmallBytes = kGranuleBytes / 4;

struct PoolStats {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;        // whole granules
  uint64_t small_free_bytes = 0;  // part of used_bytes: free pages of shared granules, for small images
  uint64_t high_water_bytes = 0;  // max ever used
  uint64_t failed_allocations = 0;
};

class HostPool {
 public:
  struct Options {
    uint64_t bytes = uint64_t{4} << 30;      // rounded up to whole granules
    uint64_t segment_bytes = kSegmentBytes;  // a multiple of kGranuleBytes
    // Use huge pages that the host has reserved, if there are enough; else transparent ones that the kernel
    // makes during pre-faulting; else 4 KiB pages.
    bool use_huge_pages = true;
    int prefault_threads = 1;  // 0: pages appear at first touch
    // Whether images of at most kMaxSmallBytes share granules. They never share in reserved huge pages,
    // because a client cannot map a part of such a page.
    bool share_granules = true;
    // On a host with several NUMA nodes: new segments come from these nodes in turn. Empty: the kernel
    // chooses.
    std::vector<int> numa_nodes = {};

    void FromConfig(ConfigReader& config) {
      config.Read("daemon.host_pool", bytes);
      config.Read("daemon.huge_pages", use_huge_pages);
    }
    void Validate(Findings& findings) const;
  };

  // The segments of an earlier pool, and callbacks for their replacement.
  struct Kept {
    // Each kept segment takes the place of a new one of its size. It is read only and counts as used until
    // the last allocation in it goes; then a new segment, with pages that come at first touch, replaces it.
    // Segments that fit no place, or have the wrong seals, are dropped. The place of a segment without a
    // descriptor has no memory until then, whatever its size.
    std::vector<KeptSegment> segments;
    // Called when a kept segment is replaced, on the thread that ended its last allocation: before the old
    // segment is unmapped, and before anything is allocated in the new one. May be empty.
    std::function<void(const PoolSegment& gone)> before_replaced;
    std::function<void(const PoolSegment& made, const std::string& made_name, const std::string& gone_name)>
        on_replaced;
  };

  // RESOURCE_EXHAUSTED when the host has not enough memory or, for a pre-faulted pool, has not enough
  // available memory now.
  static absl::StatusOr<std::unique_ptr<HostPool>> Create(const Options& options, Kept kept = {});
  // Stops the background pre-faulting. REQUIRES: no allocation is left (checked).
  ~HostPool();

  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Memory for a whole image; `bytes` may be 0. RESOURCE_EXHAUSTED, with the free bytes, when too few
  // granules are free.
  absl::StatusOr<HostAllocation> Allocate(uint64_t bytes);
  // As Allocate(bytes); in one piece and near this NUMA node of Options::numa_nodes, if such memory is free.
  absl::StatusOr<HostAllocation> AllocateNear(uint64_t bytes, int numa_node);
  // Memory for only those granules of an image that hold bytes of the ranges. The ranges may overlap and come
  // in any order. RESOURCE_EXHAUSTED as above. REQUIRES: the ranges lie in the image.
  absl::StatusOr<HostAllocation> Allocate(uint64_t image_bytes, std::span<const ByteRange> ranges);
  // A new allocation of the same image: it shares the granules of `allocation`, which stays unchanged, and
  // also has the granules of the ranges. RESOURCE_EXHAUSTED as above. REQUIRES: `allocation` is of this pool,
  // and the ranges lie in its image.
  absl::StatusOr<HostAllocation> Grow(const HostAllocation& allocation, std::span<const ByteRange> ranges);

  // Adopts an allocation of a previous pool, in kept segments. INVALID_ARGUMENT unless the extents are a
  // whole image in such segments. REQUIRES: of each kept segment, an allocation is
  // adopted before any allocation in it ends.
  absl::StatusOr<HostAllocation> Adopt(uint64_t image_bytes, std::span<const NamedExtent> extents);
  // The extents of an allocation by segment names, for a later pool. REQUIRES: the allocation has memory.
  std::vector<NamedExtent> Named(const HostAllocation& allocation) const;
  // Replaces the kept segments of which no allocation was adopted.
  void DropUnusedKept();
  // From now on unused kept segments stay, too: this pool is about to end, and the next pool should find
  // them.
  void StopReplacing();

  // The bytes that Allocate(image_bytes) takes: whole granules, or pages if the image shares a granule.
  uint64_t BytesFor(uint64_t image_bytes) const;

  std::byte* base() const;
  uint64_t bytes() const;
  const std::vector<PoolSegment>& segments() const;
  // Unique among the segments of all pools.
  std::string segment_name(size_t segment) const;
  // Changes with each replaced segment: the same id and segment number mean the same memory.
  std::string id() const;
  SegmentKind kind(size_t segment) const;
  bool huge_pages() const;  // whether the pool uses reserved huge pages
  // True after the background threads have touched every page. WaitPrefaulted blocks until they have ended.
  // After that, prefaulted() is still false if there were no threads, or if memory ran out (logged); the
  // remaining pages then appear at first touch.
  bool prefaulted() const;
  void WaitPrefaulted();
  PoolStats stats() const;

 private:
  friend class HostAllocation;
  struct State;
  explicit HostPool(std::unique_ptr<State> state);
  // An allocation that shares these extents and takes new memory for `granules` of the image.
  absl::StatusOr<HostAllocation> Add(uint64_t image_bytes, const std::vector<ImageExtent>& shared,
                                     const std::vector<GranuleRange>& granules, uint64_t wanted_bytes);
  HostAllocation Share(uint64_t image_bytes, std::vector<ImageExtent> extents);
  bool Shares(uint64_t image_bytes) const;
  absl::StatusOr<HostAllocation> AddSmall(uint64_t image_bytes);
  void Release(const std::vector<ImageExtent>& extents);
  void Replace(size_t segment);
  std::unique_ptr<State> state_;
};

}  // namespace tensorcast
