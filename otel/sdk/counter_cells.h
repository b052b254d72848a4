// The totals of one counter, in one cell for each combination of label values.
//
// An addition is a look-up and an atomic addition; the SDK's synchronous counters take a lock at each
// addition. The SDK reads the totals when it collects. Standard library only.
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

// Thread-safe; adding to an existing cell takes no lock, except for the shared cell (kMaxCells).
class CounterCells {
 public:
  // Max cells: with more series the SDK would report wrong totals. Further combinations of label values share
  // one more cell, with "other" for all labels; adding to that cell takes a lock.
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
