// The totals of one counter: a cell for each combination of label values.
//
// For each addition, the SDK's synchronous counters build a hash of owned strings and take a spin lock,
// several times a call, on every thread. Here an addition is a look-up and an atomic addition. The SDK reads
// the totals when it collects, as for any observable counter. Standard library only.
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
  // Label values beyond this number share one more cell, with "other" for all labels, which takes a lock.
  // With that cell there are as many as the SDK keeps apart: with more, it would sum the totals anew at each
  // collection.
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

  // Heads of lists to which cells are only added, at the head.
  std::array<std::atomic<Cell*>, 64> lists_{};
  std::mutex growing_;
  size_t cells_ = 0;  // guarded by growing_
};

}  // namespace tensorcast::otel::sdk
