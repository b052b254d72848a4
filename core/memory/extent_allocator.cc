#include "core/memory/extent_allocator.h"

#include <algorithm>
#include <iterator>

#include "absl/log/check.h"

namespace tensorcast {

ExtentAllocator::ExtentAllocator(uint64_t granules, uint64_t segment_granules)
    : segment_granules_(segment_granules), free_granules_(granules) {
  for (uint64_t first = 0; first < granules; first += segment_granules) {
    const uint64_t count = std::min(segment_granules, granules - first);
    free_in_segment_.push_back(count);
    Insert({first, count});
  }
}

// Goes round until all is taken. In each round either one range covers the rest, or one segment gives what it
// has. Granules are never missing in between, since the total was compared first.
std::optional<std::vector<GranuleRange>> ExtentAllocator::Allocate(uint64_t count) {
  if (count > free_granules_) return std::nullopt;
  std::vector<GranuleRange> taken;
  for (uint64_t missing = count; missing > 0;) {
    const uint64_t before = free_granules_;
    // The smallest range that is large enough, so that large ones stay whole.
    if (const auto fit = by_count_.lower_bound({missing, 0}); fit != by_count_.end()) {
      taken.push_back(TakeFrom(fit->second, missing, fit->second / segment_granules_));
    } else {
      TakeFromSegment(ChooseSegment(missing), missing, taken);
    }
    missing -= before - free_granules_;
  }
  std::ranges::sort(taken, {}, &GranuleRange::first);
  return taken;
}

std::optional<GranuleRange> ExtentAllocator::AllocateWhere(uint64_t count,
                                                           absl::FunctionRef<bool(uint64_t segment)> suits) {
  for (auto fit = by_count_.lower_bound({count, 0}); fit != by_count_.end(); ++fit) {
    const uint64_t segment = fit->second / segment_granules_;
    if (suits(segment)) return TakeFrom(fit->second, count, segment);
  }
  return std::nullopt;
}

uint64_t ExtentAllocator::ChooseSegment(uint64_t count) const {
  uint64_t best = 0;
  for (uint64_t segment = 1; segment < free_in_segment_.size(); ++segment) {
    const uint64_t here = free_in_segment_[segment];
    const uint64_t there = free_in_segment_[best];
    // While one has enough the fullest of these, else the emptiest of all.
    if (there >= count ? here >= count && here < there : here > there) best = segment;
  }
  return best;
}

void ExtentAllocator::TakeFromSegment(uint64_t segment, uint64_t wanted, std::vector<GranuleRange>& taken) {
  const auto begin = by_first_.lower_bound(segment * segment_granules_);
  const auto end = by_first_.lower_bound((segment + 1) * segment_granules_);
  // A copy: what is taken changes both indexes.
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // (count, first), the largest last
  for (auto range = begin; range != end; ++range) ranges.emplace_back(range->second, range->first);
  std::ranges::sort(ranges);
  // The largest ranges go first: as few extents as possible, each of which a client maps on its own.
  while (wanted > 0 && !ranges.empty()) {
    auto next = std::prev(ranges.end());
    // Where one is large enough the smallest such, and it is the last to be taken.
    if (next->first >= wanted) {
      next = std::ranges::lower_bound(ranges, std::pair<uint64_t, uint64_t>(wanted, 0));
    }
    taken.push_back(TakeFrom(next->second, wanted, segment));
    wanted -= taken.back().count;
    ranges.pop_back();
  }
}

void ExtentAllocator::Free(GranuleRange range) {
  if (range.count == 0) return;
  const uint64_t segment = range.first / segment_granules_;
  const uint64_t segment_begin = segment * segment_granules_;
  const uint64_t segment_end = segment_begin + segment_granules_;
  free_granules_ += range.count;
  free_in_segment_[segment] += range.count;
  // Free neighbours become one range, which never reaches into another segment.
  auto next = by_first_.lower_bound(range.first);
  if (next != by_first_.begin()) {
    auto before = std::prev(next);
    CHECK_LE(before->first + before->second, range.first) << "granules given back twice";
    if (before->first + before->second == range.first && before->first >= segment_begin) {
      range = {before->first, before->second + range.count};
      Erase(before);
    }
  }
  if (next != by_first_.end()) {
    CHECK_LE(range.first + range.count, next->first) << "granules given back twice";
    if (range.first + range.count == next->first && next->first < segment_end) {
      range.count += next->second;
      Erase(next);
    }
  }
  Insert(range);
}

void ExtentAllocator::TakeSegment(uint64_t segment) {
  const uint64_t first = segment * segment_granules_;
  const GranuleRange taken = TakeFrom(first, segment_granules_, segment);
  CHECK(free_in_segment_[segment] == 0) << "segment " << segment << " was in use, from " << taken.first;
}

GranuleRange ExtentAllocator::TakeFrom(uint64_t first, uint64_t wanted, uint64_t segment) {
  const auto found = by_first_.find(first);
  const GranuleRange whole{found->first, found->second};
  // The rest of the range goes back to both indexes, which are kept alike at each step.
  Erase(found);
  const uint64_t count = std::min(wanted, whole.count);
  if (count < whole.count) Insert({whole.first + count, whole.count - count});
  free_granules_ -= count;
  free_in_segment_[segment] -= count;
  return {whole.first, count};
}

void ExtentAllocator::Insert(GranuleRange range) {
  by_first_.emplace(range.first, range.count);
  by_count_.emplace(range.count, range.first);
}

void ExtentAllocator::Erase(ByFirst::iterator range) {
  by_count_.erase({range->second, range->first});
  by_first_.erase(range);
}

}  // namespace tensorcast
