// When a transfer asks for sources again: two policies of the replica that it fills. Values without a clock;
// thread-compatible.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::global_store {

// A transfer that has fewer sources than it wants looks for more a few times, and ever later: few messages
// see a transfer through that has to wait long for others to come.
class LookSchedule {
 public:
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
  static constexpr double kFactor = 2.2;
  static constexpr uint32_t kMaxLooks = 6;

  // The pause before the next look, which is counted; infinite: there is none.
  absl::Duration Next();
  uint32_t looks() const { return looks_; }

 private:
  uint32_t looks_ = 0;
};

// A receiver leaves the network to a daemon of its host that was given sources there, since the bytes are to
// cross the network to each host once. It counts its own time, so that no number of turns of others keeps it
// waiting; mostly the other's report comes within milliseconds.
class HostmatePatience {
 public:
  static constexpr absl::Duration kTurn = absl::Milliseconds(500);
  static constexpr absl::Duration kShortestPause = absl::Milliseconds(10);

  // A hostmate has its turn: how long to leave the network to it before asking again, which is as long as
  // this one has waited, and at least the shortest pause. nullopt: it has waited for a whole turn.
  std::optional<absl::Duration> Wait(SteadyTime now);
  // It was given sources.
  void End() { until_ = SteadyTime::InfiniteFuture(); }

 private:
  SteadyTime until_ = SteadyTime::InfiniteFuture();  // infinite: it was not told to wait
};

}  // namespace tensorcast::global_store
