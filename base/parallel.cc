#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace tensorcast {

void ForEachInParallel(size_t count, size_t max_threads, absl::FunctionRef<void(size_t index)> task) {
  std::atomic<size_t> next = 0;
  // The indices are handed out one by one and not in blocks, so that one slow call holds up one thread alone.
  const auto work = [&] {
    for (size_t index = next++; index < count; index = next++) task(index);
  };
  std::vector<std::thread> others;
  try {
    for (size_t thread = 1; thread < std::min(max_threads, count); ++thread) others.emplace_back(work);
  } catch (const std::system_error&) {
    // The process has all the threads that it may have: it takes longer.
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace tensorcast
