// Which granules of a pool are free: contiguous ranges where possible, several pieces where not. Knows
// nothing of the memory behind them. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace tensorcast {

struct GranuleRange {
  uint64_t first = 0;
  uint64_t count = 0;
  friend bool operator==(const GranuleRange&, const GranuleRange&) = default;
};

class ExtentAllocator {
 public:
  explicit ExtentAllocator(uint64_t granules);

  // `count` granules in ascending order: one range when a free one is large enough (the smallest such, so
  // that large ones stay whole), else the fewest pieces. nullopt when fewer are free, and only then.
  std::optional<std::vector<GranuleRange>> Allocate(uint64_t count);

  // REQUIRES: handed out by Allocate, not yet given back. Joins free neighbours.
  void Free(GranuleRange range);

  uint64_t free_granules() const { return free_granules_; }
  uint64_t free_ranges() const { return by_first_.size(); }

 private:
  using ByFirst = std::map<uint64_t, uint64_t>;  // first -> count

  GranuleRange TakeFrom(uint64_t first, uint64_t wanted);
  void Insert(GranuleRange range);
  void Erase(ByFirst::iterator range);

  // The same free ranges, by place and by size.
  ByFirst by_first_;
  std::set<std::pair<uint64_t, uint64_t>> by_count_;  // (count, first)
  uint64_t free_granules_ = 0;
};

}  // namespace tensorcast
