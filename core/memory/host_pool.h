// The host pool: memory of pinned size that holds every host replica and every staging buffer of the daemon.
//
// It is a row of segments, memfds of at most 1 GiB, mapped side by side. Each is pre-faulted in the
// background and sealed (SHRINK | GROW | FUTURE_WRITE | SEAL), so a process that is handed its descriptor can
// map it for reading only, and sees no other segment.
//
// Space is handed out in extents of whole 2 MiB granules: contiguous where possible, in pieces otherwise, so
// an allocation no larger than the free granules never fails. Each granule counts the allocations that name
// it, so that one can be grown or cut while those made of it before stay as they are. An allocation is kept
// in one segment where that is possible; an extent never reaches from one into the next.
//
// An image of at most kMaxSmallBytes takes whole memory pages of a granule that such images share, in one
// extent: thousands of adapters would otherwise take a granule each. Thread-safe.
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
  uint64_t small_free_bytes = 0;  // of the used: in shared granules, for small images
  uint64_t high_water_bytes = 0;  // max ever used
  uint64_t failed_allocations = 0;
};

class HostPool {
 public:
  struct Options {
    uint64_t bytes = uint64_t{4} << 30;      // rounded up to whole granules
    uint64_t segment_bytes = kSegmentBytes;  // a multiple of kGranuleBytes
    // Those that the host has set aside, if enough; else such as the kernel makes while the pool is
    // pre-faulted; 4 KiB pages where it makes none.
    bool use_huge_pages = true;
    int prefault_threads = 1;  // 0: pages appear at first touch
    // Whether images of at most kMaxSmallBytes share granules. They never do in huge pages that were set
    // aside, of which a client can map none in part.
    bool share_granules = true;
    // Of a host with several: new segments come from them in turn. Empty: from where the kernel likes.
    std::vector<int> numa_nodes = {};

    void FromConfig(ConfigReader& config) {
      config.Read("daemon.host_pool", bytes);
      config.Read("daemon.huge_pages", use_huge_pages);
    }
    void Validate(Findings& findings) const;
  };

  // What an earlier pool left, and the owner that is told of what becomes of it.
  struct Kept {
    // Each segment replaces a new one of its size, is read only and all used until the last allocation in it
    // goes; then a new one, with pages that come at first touch, takes its place. Those that fit no place, or
    // are not sealed as they should be, are let go. The place of one without a descriptor has no memory
    // meanwhile, whatever its size.
    std::vector<KeptSegment> segments;
    // Told of such a change, before the old segment is unmapped and before anything is allocated in the new
    // one; on the thread that let go of that allocation. May be empty.
    std::function<void(const PoolSegment& gone)> before_replaced;
    std::function<void(const PoolSegment& made, const std::string& made_name, const std::string& gone_name)>
        on_replaced;
  };

  // RESOURCE_EXHAUSTED when the host cannot give that much memory: more than it has, or, for a pool that is
  // pre-faulted, more than is available right now.
  static absl::StatusOr<std::unique_ptr<HostPool>> Create(const Options& options, Kept kept = {});
  // Stops the background pre-faulting. REQUIRES: no allocation is left (checked).
  ~HostPool();

  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Memory for all of an image. RESOURCE_EXHAUSTED, naming what is free, when fewer granules are. `bytes`
  // may be 0.
  absl::StatusOr<HostAllocation> Allocate(uint64_t bytes);
  // The same, in one piece and near a NUMA node of Options::numa_nodes if such memory is free.
  absl::StatusOr<HostAllocation> AllocateNear(uint64_t bytes, int numa_node);
  // For the granules of an image that hold bytes of the ranges, and no others. The ranges may overlap and
  // come in any order. RESOURCE_EXHAUSTED as above. REQUIRES: they lie in the image.
  absl::StatusOr<HostAllocation> Allocate(uint64_t image_bytes, std::span<const ByteRange> ranges);
  // Another allocation of the same image: it shares the granules of `allocation`, which stays as it is, and
  // has those of the ranges too. RESOURCE_EXHAUSTED as above. REQUIRES: `allocation` is of this pool, the
  // ranges lie in its image.
  absl::StatusOr<HostAllocation> Grow(const HostAllocation& allocation, std::span<const ByteRange> ranges);

  // Adopts an allocation of a previous pool, in segments that were kept. REQUIRES: of each kept segment
  // something is adopted before anything of it is let go. INVALID_ARGUMENT for what is not a whole image in
  // such segments.
  absl::StatusOr<HostAllocation> Adopt(uint64_t image_bytes, std::span<const NamedExtent> extents);
  // Where an allocation of this pool is, for a later pool. REQUIRES: the allocation has memory.
  std::vector<NamedExtent> Named(const HostAllocation& allocation) const;
  // Replaces the kept segments that nothing was adopted of.
  void DropUnusedKept();
  // From now on kept segments stay where they are, also unused: this pool is about to go, and another one
  // shall find them.
  void StopReplacing();

  // What Allocate(image_bytes) takes of the pool: whole granules, or the pages of an image that shares one.
  uint64_t BytesFor(uint64_t image_bytes) const;

  std::byte* base() const;
  uint64_t bytes() const;
  const std::vector<PoolSegment>& segments() const;
  // Unique among the segments of all pools.
  std::string segment_name(size_t segment) const;
  // Changes with each change of a segment: the same id and number, the same memory.
  std::string id() const;
  SegmentKind kind(size_t segment) const;
  bool huge_pages() const;  // of those set aside
  // True once the background has touched every page. WaitPrefaulted blocks until the background has ended; it
  // leaves prefaulted() false when there was none, or memory ran out (logged) and the rest appears at first
  // touch.
  bool prefaulted() const;
  void WaitPrefaulted();
  PoolStats stats() const;

 private:
  friend class HostAllocation;
  struct State;
  explicit HostPool(std::unique_ptr<State> state);
  // An allocation that shares these extents and has `granules` of the image newly taken.
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
