// Measures the rate at which one transfer receives bytes from other nodes. The global store uses the rate for
// nodes without a label for their rate.
//
// A value type; the caller passes the time. Thread-compatible.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

class ReceiveRate {
 public:
  // A rate over a shorter time depends mostly on the connection setup.
  static constexpr absl::Duration kMinTime = absl::Milliseconds(50);

  // Called when the transfer has a source. Only the earliest time counts.
  void Begin(SteadyTime now) { since_ = std::min(since_, now); }
  // The rate in Mbit/s if `bytes` bytes came until `now`; 0 if it is not known yet.
  uint64_t MbitOf(uint64_t bytes, SteadyTime now) const {
    if (since_ == SteadyTime::InfiniteFuture() || now - since_ < kMinTime) return 0;
    const double mbit = static_cast<double>(bytes) * 8e-6 / absl::ToDoubleSeconds(now - since_);
    return static_cast<uint64_t>(std::llround(mbit));
  }

 private:
  SteadyTime since_ = SteadyTime::InfiniteFuture();
};

}  // namespace tensorcast
