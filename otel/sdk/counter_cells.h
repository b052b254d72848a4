// The totals of one counter, in one cell for each combination of label values.
//
// The SDK's synchronous counters hash copied strings and take a spin lock at each addition. Here an addition
// is a look-up and an atomic addition. The SDK reads the totals when it collects, as it does for any
// observable counter. Standard library only.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

#include "otel/api/metrics.h"

namespace tensorcast::otel::sdk {

// Thread-safe; adding to an existing cell takes no lock.
class CounterCells {
 public:
  // Max cells. Combinations of label values beyond this number share one more cell, with "other" for all
  // labels; adding to that cell takes a lock. Together these are the max number of series that the SDK keeps
  // separate. If there were more, the SDK would merge the rest into one series, and would add their totals
  // to that series again at each collection.
  static constexpr size_t kMaxCells = 1998;

  CounterCells();
  ~CounterCells();

  void Add(int64_t value, LabelValues labels);
  // Calls `read` for each cell.
  void ForEach(const std::function<void(int64_t total, LabelValues labels)>& read) const;

 private:
  struct Cell;

  Cell* Find(size_t hash, LabelValues labels) const;
  Cell& FindOrMake(size_t hash, LabelValues labels);

  // The heads of linked lists. Cells are only added, at the head, and never removed.
  std::array<std::atomic<Cell*>, 64> lists_{};
  std::mutex growing_;
  size_t cells_ = 0;  // guarded by growing_
};

}  // namespace tensorcast::otel::sdk
