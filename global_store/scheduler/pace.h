// Two policies decide when a transfer asks for sources again. Their state is stored with the replica that the
// transfer fills. Callers pass the time; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::global_store {

// A transfer with too few sources asks for more a few times ("looks"), with growing pauses.
class LookSchedule {
 public:
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
  static constexpr double kFactor = 2.2;
  static constexpr uint32_t kMaxLooks = 6;

  // Counts the next look, and returns the pause before it. Infinite: there is no further look.
  absl::Duration Next();
  uint32_t looks() const { return looks_; }

 private:
  uint32_t looks_ = 0;
};

// Limits how long a receiver waits for another daemon of its host (a hostmate) that pulls from other hosts.
// The receiver waits so that the bytes cross the network once per host.
class HostmatePatience {
 public:
  static constexpr absl::Duration kTurn = absl::Milliseconds(500);  // max wait in total
  static constexpr absl::Duration kShortestPause = absl::Milliseconds(10);

  // Call this while a hostmate pulls from other hosts. Returns the pause before the receiver asks again. The
  // pause is as long as the receiver has waited so far, and at least kShortestPause. nullopt: the receiver
  // has waited for kTurn.
  std::optional<absl::Duration> Wait(SteadyTime now);
  // Call this when the receiver was given sources.
  void End() { until_ = SteadyTime::InfiniteFuture(); }

 private:
  SteadyTime until_ = SteadyTime::InfiniteFuture();  // infinite: the receiver does not wait
};

}  // namespace tensorcast::global_store
