// Allocates granules of a pool, in contiguous ranges where possible, else in several pieces. The pool
// consists of segments, and a range lies in one segment. Does not touch the memory itself.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/memory/extent.h"

namespace tensorcast {

class ExtentAllocator {
 public:
  // Each segment has `segment_granules` granules; the last may have fewer. REQUIRES: segment_granules > 0.
  ExtentAllocator(uint64_t granules, uint64_t segment_granules);

  // Allocates `count` granules and returns their ranges in ascending order; nullopt only if fewer than
  // `count` granules are free. In order of preference, Allocate takes:
  // - the smallest free range that is large enough, so that large ranges stay whole;
  // - as few ranges as possible of one segment: the segment with the fewest free granules that still has
  //   enough;
  // - all free granules of the segment with the most free granules, and the remaining granules by these
  //   rules.
  std::optional<std::vector<GranuleRange>> Allocate(uint64_t count);
  // Allocates from the smallest free range that is large enough and lies in a segment for which `suits` is
  // true; nullopt when there is none. REQUIRES: count > 0.
  std::optional<GranuleRange> AllocateWhere(uint64_t count, absl::FunctionRef<bool(uint64_t segment)> suits);

  // Frees a range and joins it with free neighbours in the same segment. REQUIRES: the range is allocated.
  void Free(GranuleRange range);

  // Allocates a whole segment; Free gives it back as one range. REQUIRES: all of the segment is free.
  void TakeSegment(uint64_t segment);

  uint64_t free_granules() const { return free_granules_; }
  uint64_t free_ranges() const { return by_first_.size(); }

 private:
  using ByFirst = std::map<uint64_t, uint64_t>;  // first -> count

  // The fullest segment with at least `count` free granules; if there is none, the emptiest segment.
  uint64_t ChooseSegment(uint64_t count) const;
  // Takes `wanted` granules of a segment in as few pieces as possible, or all free ones if there are fewer.
  void TakeFromSegment(uint64_t segment, uint64_t wanted, std::vector<GranuleRange>& taken);
  // Takes up to `wanted` granules of the free range that begins at `first`.
  GranuleRange TakeFrom(uint64_t first, uint64_t wanted, uint64_t segment);
  void Insert(GranuleRange range);
  void Erase(ByFirst::iterator range);

  const uint64_t segment_granules_;
  // All free ranges, by first granule and by size.
  ByFirst by_first_;
  std::set<std::pair<uint64_t, uint64_t>> by_count_;  // (count, first)
  std::vector<uint64_t> free_in_segment_;
  uint64_t free_granules_ = 0;
};

}  // namespace tensorcast
