// Private to the fake backend.
#pragma once

#include <atomic>

namespace tensorcast {

// Counts one fault down; true when there was one.
inline bool TakeFault(std::atomic<int>& left) {
  int count = left.load();
  while (count > 0) {
    if (left.compare_exchange_weak(count, count - 1)) return true;
  }
  return false;
}

}  // namespace tensorcast
