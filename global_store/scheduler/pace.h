// When a transfer asks for sources again: two policies, stored with the replica that the transfer fills.
// Callers pass the time; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::global_store {

// A transfer with fewer sources than it wants asks for more a few times, with growing pauses: few messages
// suffice even for a transfer that waits long.
class LookSchedule {
 public:
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
  static constexpr double kFactor = 2.2;
  static constexpr uint32_t kMaxLooks = 6;

  // Counts the next look, and returns the pause before it; infinite: there is no further look.
  absl::Duration Next();
  uint32_t looks() const { return looks_; }

 private:
  uint32_t looks_ = 0;
};

// A receiver leaves the network to a daemon of its host that was given sources there, since the bytes should
// cross the network once per host. It counts its own time, so that any number of turns of others cannot keep
// it waiting; usually the other's report comes within milliseconds.
class HostmatePatience {
 public:
  static constexpr absl::Duration kTurn = absl::Milliseconds(500);
  static constexpr absl::Duration kShortestPause = absl::Milliseconds(10);

  // A hostmate has its turn: returns how long to leave the network to it before asking again, which is as
  // long as this receiver has waited, and at least the min pause. nullopt: it has waited for a whole turn.
  std::optional<absl::Duration> Wait(SteadyTime now);
  // This receiver was given sources.
  void End() { until_ = SteadyTime::InfiniteFuture(); }

 private:
  SteadyTime until_ = SteadyTime::InfiniteFuture();  // infinite: not told to wait
};

}  // namespace tensorcast::global_store
