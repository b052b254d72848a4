// The accounts of a host pool: the free granules, the references to taken granules, and the segments that
// are kept from a previous pool. Does not touch the memory itself.
//
// A taken granule has one or more references. The first reference belongs to the allocation that took the
// granule. In a kept segment the first reference belongs to the pool until the segment is replaced.
// Allocations that share the granule add further references. When the last reference is dropped, the granule
// is free. The granules of a kept segment become free all at once, when a new memfd has replaced the
// segment.
//
// Thread-compatible. An error changes only the number of failures. Internal to this folder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/memory/extent.h"
#include "core/memory/extent_allocator.h"
#include "core/memory/segments.h"
#include "core/memory/small_extents.h"

namespace tensorcast {

class PoolLedger {
 public:
  // All granules are free, and all segments are the pool's own, with new names. REQUIRES: both sizes are
  // positive multiples of kGranuleBytes.
  PoolLedger(uint64_t bytes, uint64_t segment_bytes);

  // Marks a segment as kept from a previous pool, or as a place without memory. All of its granules are taken
  // until Replaced is called. REQUIRES: nothing was taken yet.
  void Keep(size_t segment, std::string name, SegmentKind kind);

  // Takes this many free granules, with one reference each. RESOURCE_EXHAUSTED if too few are free;
  // the message of this error has `wanted_bytes`.
  absl::StatusOr<std::vector<GranuleRange>> Take(uint64_t granules, uint64_t wanted_bytes);
  // As Take, but takes one range in a segment for which `suits` is true; nullopt if no such range is free.
  std::optional<GranuleRange> TakeWhere(uint64_t granules, absl::FunctionRef<bool(uint64_t segment)> suits);
  // Takes pages of a shared granule for a small image. Errors as Take.
  absl::StatusOr<Extent> TakeSmall(uint64_t image_bytes);
  // Returns the extents of an allocation of a previous pool, and adds a reference to each of them.
  // INVALID_ARGUMENT unless `extents` are a whole image in kept segments.
  absl::StatusOr<std::vector<ImageExtent>> Adopt(uint64_t image_bytes, std::span<const NamedExtent> extents);

  void AddReferences(Extent extent);
  // Drops one allocation's references to an extent. Returns true if the caller must now replace the
  // extent's segment.
  bool DropReferences(Extent extent);

  size_t SegmentOf(Extent extent) const { return extent.offset / segment_bytes_; }
  std::vector<NamedExtent> Named(const std::vector<ImageExtent>& extents) const;
  const std::string& name(size_t segment) const { return places_[segment].name; }
  SegmentKind kind(size_t segment) const { return places_[segment].kind; }
  const std::string& id() const { return id_; }  // HostPool::id

  std::vector<size_t> UnusedKept() const;  // the kept segments in which no allocation was adopted
  void StopReplacing() { replaces_ = false; }
  // Sets the name of the memory that replaces a kept segment, and returns the previous name. The caller
  // calls Replaced later.
  std::string Rename(size_t segment, std::string name);
  // The segment is the pool's own from now on, and all of it is free.
  void Replaced(size_t segment);

  uint64_t used_bytes() const { return bytes_ - free_bytes(); }
  uint64_t small_free_bytes() const { return small_.free_bytes(); }
  uint64_t high_water_bytes() const { return high_water_bytes_; }  // the max of used_bytes so far
  uint64_t failures() const { return failures_; }                  // of Take and TakeSmall

 private:
  struct Place {
    std::string name;
    SegmentKind kind = SegmentKind::kOwn;
    // The number of references from allocations to granules and small extents of a kept segment.
    uint64_t adopted = 0;

    bool kept() const { return kind != SegmentKind::kOwn; }
    bool unused() const { return kept() && adopted == 0; }
  };

  uint64_t free_bytes() const { return allocator_.free_granules() * kGranuleBytes; }
  uint64_t BytesAt(size_t segment) const {
    return std::min(segment_bytes_, bytes_ - segment * segment_bytes_);
  }
  void NoteUse() { high_water_bytes_ = std::max(high_water_bytes_, used_bytes()); }

  const uint64_t bytes_;
  const uint64_t segment_bytes_;
  ExtentAllocator allocator_;
  // For each granule, the number of references beyond the first. While the sum is 0, loops over this vector
  // are skipped.
  std::vector<uint32_t> further_references_;
  uint64_t all_further_references_ = 0;  // the sum
  SmallExtents small_{PageBytes()};      // divides granules that the allocator handed out
  std::vector<Place> places_;            // one for each segment
  std::string id_;
  bool replaces_ = true;
  uint64_t high_water_bytes_ = 0;
  uint64_t failures_ = 0;
};

}  // namespace tensorcast
