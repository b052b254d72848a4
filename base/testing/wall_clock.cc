#include "base/testing/wall_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
std::atomic<int64_t> wall_offset_ns{0};

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
  const int64_t nanos = time->tv_sec * kNanosPerSecond + time->tv_nsec + wall_offset_ns.load();
  time->tv_sec = nanos / kNanosPerSecond;
  time->tv_nsec = nanos % kNanosPerSecond;
  return 0;
}

namespace tensorcast::testing {

WallClockSet::WallClockSet(absl::Duration offset) { wall_offset_ns = absl::ToInt64Nanoseconds(offset); }
WallClockSet::~WallClockSet() { wall_offset_ns = 0; }

}  // namespace tensorcast::testing
