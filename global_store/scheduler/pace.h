// When a transfer asks for sources again: two policies, stored with the replica that the transfer fills.
// Callers pass the time; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::global_store {

// A transfer with fewer sources than it wants asks for more a few times ("looks"), with growing pauses, so
// that even a long transfer sends few messages.
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

// A receiver leaves the network to another daemon of its host (a hostmate) that was given sources on other
// hosts, since the bytes should cross the network once per host. The receiver limits its own total wait, so
// that many turns of hostmates cannot keep it waiting. Usually the hostmate reports its replica within
// milliseconds.
class HostmatePatience {
 public:
  static constexpr absl::Duration kTurn = absl::Milliseconds(500);
  static constexpr absl::Duration kShortestPause = absl::Milliseconds(10);

  // Call this while a hostmate has its turn. Returns the pause before the receiver asks again: as long as the
  // receiver has waited so far, and at least kShortestPause. nullopt: the receiver has waited for a whole
  // turn (kTurn).
  std::optional<absl::Duration> Wait(SteadyTime now);
  // Call this when the receiver was given sources.
  void End() { until_ = SteadyTime::InfiniteFuture(); }

 private:
  SteadyTime until_ = SteadyTime::InfiniteFuture();  // infinite: the receiver does not wait
};

}  // namespace tensorcast::global_store
