// The totals of one counter, a cell for each combination of label values.
//
// The SDK's synchronous counters build a hash of owned strings and take a spin lock for each addition,
// several times a call, from every thread; here an addition is a look-up and an atomic addition. The SDK
// reads the totals when it collects, as it reads those of any observable counter. Standard library only.
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

// Thread-safe; adding to a cell of its own takes no lock.
class CounterCells {
 public:
  // What has no cell of its own counts in one more, with "other" for all labels, and takes a lock. Together
  // they are as many as the SDK keeps apart: of more it would add the totals up anew at each collection.
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

  // Heads of lists that only grow, at their heads.
  std::array<std::atomic<Cell*>, 64> lists_{};
  std::mutex growing_;
  size_t cells_ = 0;  // guarded by growing_
};

}  // namespace tensorcast::otel::sdk
