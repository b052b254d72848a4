// How one end of a transfer (the receiver or a source) spent its wall time. A value; thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace tensorcast {

enum class TimeUse : uint8_t {
  kIdle,     // nothing to do: a receiver found no missing chunk to request, a source had no request
  kBuffers,  // waited for staging memory while no chunk was requested, or for pool space
  kLimiter,  // daemon.limits held the lanes of this end back
  kWorking,  // the busiest thread of the process ran
  kNoCpu,    // the busiest thread was ready to run, but other threads had the CPUs
  kStopped,  // no thread of the process could run: SIGSTOP, a debugger, a frozen container
};
inline constexpr size_t kTimeUses = 6;

// The uses may overlap, so their sum may exceed `whole`. In the time without any use, this end waited for the
// other end or for the network.
struct WallTime {
  absl::Duration whole;  // zero: this end recorded nothing
  std::array<absl::Duration, kTimeUses> uses;

  absl::Duration& operator[](TimeUse use) { return uses[static_cast<size_t>(use)]; }
  absl::Duration operator[](TimeUse use) const { return uses[static_cast<size_t>(use)]; }
  // The share of `whole` that `use` took, from 0 to 1.
  double Share(TimeUse use) const {
    if (whole <= absl::ZeroDuration()) return 0;
    const double share = absl::FDivDuration((*this)[use], whole);
    return share < 0 ? 0 : share > 1 ? 1 : share;
  }
};

}  // namespace tensorcast
