#include "core/memory/extent_allocator.h"

#include <algorithm>
#include <iterator>

#include "absl/log/check.h"

namespace tensorcast {

ExtentAllocator::ExtentAllocator(uint64_t granules) : free_granules_(granules) {
  if (granules > 0) Insert({0, granules});
}

std::optional<std::vector<GranuleRange>> ExtentAllocator::Allocate(uint64_t count) {
  if (count > free_granules_) return std::nullopt;
  std::vector<GranuleRange> taken;
  for (uint64_t missing = count; missing > 0; missing -= taken.back().count) {
    auto fit = by_count_.lower_bound({missing, 0});
    if (fit == by_count_.end()) fit = std::prev(fit);  // none is large enough: the largest, whole
    taken.push_back(TakeFrom(fit->second, missing));
  }
  std::ranges::sort(taken, {}, &GranuleRange::first);
  free_granules_ -= count;
  return taken;
}

void ExtentAllocator::Free(GranuleRange range) {
  if (range.count == 0) return;
  free_granules_ += range.count;
  auto next = by_first_.lower_bound(range.first);
  if (next != by_first_.begin()) {
    auto before = std::prev(next);
    CHECK_LE(before->first + before->second, range.first) << "granules given back twice";
    if (before->first + before->second == range.first) {
      range = {before->first, before->second + range.count};
      Erase(before);
    }
  }
  if (next != by_first_.end()) {
    CHECK_LE(range.first + range.count, next->first) << "granules given back twice";
    if (range.first + range.count == next->first) {
      range.count += next->second;
      Erase(next);
    }
  }
  Insert(range);
}

GranuleRange ExtentAllocator::TakeFrom(uint64_t first, uint64_t wanted) {
  const auto found = by_first_.find(first);
  const GranuleRange whole{found->first, found->second};
  Erase(found);
  const uint64_t count = std::min(wanted, whole.count);
  if (count < whole.count) Insert({whole.first + count, whole.count - count});
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
