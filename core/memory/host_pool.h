// The host pool: memory of fixed size that holds every host replica and every staging buffer of the daemon.
//
// The pool consists of segments: memfds of at most 1 GiB, mapped one after the other into one address range.
// Each segment is pre-faulted in the background and sealed (SHRINK | GROW | FUTURE_WRITE | SEAL). A process
// that gets the descriptor of a segment can map it only for reading, and sees no other segment.
//
// The pool allocates extents of whole 2 MiB granules. If no free range is large enough, an allocation gets
// several extents. So an allocation fails only if too few granules are free. An extent lies in one segment.
// Allocations can share granules: Grow and HostAllocation::Only make a new allocation from an existing
// allocation, which does not change.
//
// An image of at most kMaxSmallBytes takes one extent of whole memory pages, and shares its granule with
// other small images.
//
// Thread-safe.
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

struct PoolStats {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;        // whole granules
  uint64_t small_free_bytes = 0;  // part of used_bytes: free pages of shared granules, for small images
  uint64_t high_water_bytes = 0;  // the max of used_bytes so far
  uint64_t failed_allocations = 0;
};

class HostPool {
 public:
  struct Options {
    uint64_t bytes = uint64_t{4} << 30;      // rounded up to whole granules
    uint64_t segment_bytes = kSegmentBytes;  // a multiple of kGranuleBytes
    // Use huge pages that the host has reserved. If too few are left for all new segments, use transparent
    // huge pages where the kernel makes them during pre-faulting, and ordinary pages elsewhere.
    bool use_huge_pages = true;
    int prefault_threads = 1;  // 0: pages appear at first touch
    // Whether images of at most kMaxSmallBytes share granules. In reserved huge pages images never share
    // granules, because a client cannot map a part of a huge page.
    bool share_granules = true;
    // The NUMA nodes that provide the memory of new segments, in turn. Empty: the kernel chooses.
    std::vector<int> numa_nodes = {};

    void FromConfig(ConfigReader& config) {
      config.Read("daemon.host_pool", bytes);
      config.Read("daemon.huge_pages", use_huge_pages);
    }
    void Validate(Findings& findings) const;
  };

  // The segments of an earlier pool, and callbacks for their replacement.
  struct Kept {
    // Each kept segment takes a position in this pool that has its size; the pool drops a segment that fits
    // no position or lacks a seal. A kept segment is read-only and counts as used until its last allocation
    // ends. A new segment then replaces the kept segment; the new pages appear at first touch. A segment
    // without a descriptor takes a position of any size. This position has no memory until the segment is
    // replaced.
    std::vector<KeptSegment> segments;
    // The pool calls both functions when it replaces a kept segment, with no lock held, on the thread that
    // ended the segment's last allocation or called DropUnusedKept: before_replaced before it unmaps the kept
    // segment, and on_replaced before it allocates in the new segment. Both functions may be empty.
    std::function<void(const PoolSegment& gone)> before_replaced;
    std::function<void(const PoolSegment& made, const std::string& made_name, const std::string& gone_name)>
        on_replaced;
  };

  // RESOURCE_EXHAUSTED if the host has too little memory or, for a pre-faulted pool, too little available
  // memory now. INVALID_ARGUMENT for options that are not valid, such as 0 bytes.
  static absl::StatusOr<std::unique_ptr<HostPool>> Create(const Options& options, Kept kept = {});
  // Stops the background pre-faulting. REQUIRES: no allocation is left (checked).
  ~HostPool();

  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Memory for a whole image; `bytes` may be 0. RESOURCE_EXHAUSTED, with the free bytes in the message, if
  // too few granules are free.
  absl::StatusOr<HostAllocation> Allocate(uint64_t bytes);
  // As Allocate(bytes), but allocates one extent near `numa_node` if such memory is free. `numa_node` is one
  // of Options::numa_nodes.
  absl::StatusOr<HostAllocation> AllocateNear(uint64_t bytes, int numa_node);
  // Memory for only those granules of an image that hold bytes of the ranges. The ranges may overlap and come
  // in any order. RESOURCE_EXHAUSTED as above. REQUIRES: the ranges lie in the image.
  absl::StatusOr<HostAllocation> Allocate(uint64_t image_bytes, std::span<const ByteRange> ranges);
  // A new allocation of the same image. It shares all granules of `allocation` and also has the granules of
  // the ranges. RESOURCE_EXHAUSTED as above. REQUIRES: `allocation` is of this pool, and the ranges lie in
  // its image.
  absl::StatusOr<HostAllocation> Grow(const HostAllocation& allocation, std::span<const ByteRange> ranges);

  // Adopts an allocation of a previous pool, in kept segments. INVALID_ARGUMENT unless the extents are a
  // whole image in such segments. REQUIRES: all allocations in kept segments are adopted before one of them
  // ends, because a segment without an allocation is replaced.
  absl::StatusOr<HostAllocation> Adopt(uint64_t image_bytes, std::span<const NamedExtent> extents);
  // The extents of an allocation by segment names, for Adopt of a later pool.
  std::vector<NamedExtent> Named(const HostAllocation& allocation) const;
  // Replaces the kept segments in which no allocation was adopted. REQUIRES: no adopted allocation ends
  // during the call.
  void DropUnusedKept();
  // After this call the pool no longer replaces kept segments. Call it before this pool ends, if the next
  // pool will adopt from the kept segments.
  void StopReplacing();

  // The bytes that Allocate(image_bytes) takes: whole granules, or pages if the image shares a granule.
  uint64_t BytesFor(uint64_t image_bytes) const;

  std::byte* base() const;
  uint64_t bytes() const;
  const std::vector<PoolSegment>& segments() const;
  // The name is unique among the segments of all pools.
  std::string segment_name(size_t segment) const;
  // The pool's id. Each replacement of a segment changes the id, so id and segment number identify memory.
  std::string id() const;
  SegmentKind kind(size_t segment) const;
  bool huge_pages() const;  // whether the pool uses reserved huge pages
  // True after the background threads have touched every page. Stays false if there are no threads, or if
  // memory ran out (logged); in both cases the remaining pages appear at first touch.
  bool prefaulted() const;
  // Blocks until the background threads have ended.
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
