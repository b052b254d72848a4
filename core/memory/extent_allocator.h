// Which granules of a pool are free: contiguous ranges where possible, several pieces where not. The pool is
// in segments, and a range never reaches from one into the next. Knows nothing of the memory behind them.
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
  // In segments of so many granules, the last one may have fewer. REQUIRES: segment_granules > 0.
  ExtentAllocator(uint64_t granules, uint64_t segment_granules);

  // `count` granules in ascending order: one range when a free one is large enough (the smallest such, so
  // that large ones stay whole); else the min of pieces in one segment, the fullest that has enough; else all
  // of the emptiest segment and so on with the rest. nullopt when fewer are free, and only then.
  std::optional<std::vector<GranuleRange>> Allocate(uint64_t count);
  // In the smallest free range that is large enough, of a segment that suits; nullopt when there is none.
  // REQUIRES: count > 0.
  std::optional<GranuleRange> AllocateWhere(uint64_t count, absl::FunctionRef<bool(uint64_t segment)> suits);

  // REQUIRES: handed out, not yet given back. Joins free neighbours of one segment.
  void Free(GranuleRange range);

  // Takes all of a segment that nothing was taken of; back it comes by Free, as one range.
  void TakeSegment(uint64_t segment);

  uint64_t free_granules() const { return free_granules_; }
  uint64_t free_ranges() const { return by_first_.size(); }

 private:
  using ByFirst = std::map<uint64_t, uint64_t>;  // first -> count

  // The fullest one with so many free granules, else the emptiest.
  uint64_t ChooseSegment(uint64_t count) const;
  // Takes `wanted` granules of a segment in the min of pieces, or all that it has if that is less.
  void TakeFromSegment(uint64_t segment, uint64_t wanted, std::vector<GranuleRange>& taken);
  // Up to `wanted` of the free range that begins there.
  GranuleRange TakeFrom(uint64_t first, uint64_t wanted, uint64_t segment);
  void Insert(GranuleRange range);
  void Erase(ByFirst::iterator range);

  const uint64_t segment_granules_;
  // The same free ranges, by place and by size.
  ByFirst by_first_;
  std::set<std::pair<uint64_t, uint64_t>> by_count_;  // (count, first)
  std::vector<uint64_t> free_in_segment_;
  uint64_t free_granules_ = 0;
};

}  // namespace tensorcast
