// Detects that all sources of an ingest together have delivered nothing for too long. The limit is four times
// the average time between two chunks, but at least half a second. This minimum doubles after each reported
// stall.
//
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

class ProgressStall {
 public:
  // `chunks` is the sum over all sources of the chunks that each source has delivered, or that it has now.
  void Note(uint64_t chunks, SteadyTime now) {
    if (!watched_.has_value()) watched_ = {.since = now, .grew = now, .at_first = chunks, .chunks = chunks};
    if (chunks == watched_->chunks) return;
    watched_->chunks = chunks;
    watched_->grew = now;
  }
  // Call it when the sources in use have changed.
  void Reset() { *this = ProgressStall(); }

  // Reports a stall: true if the limit has passed since the last chunk or the last reported stall.
  bool TakeStall(SteadyTime now) {
    if (!watched_.has_value() || now - watched_->grew < Patience()) return false;
    watched_->grew = now;
    min_patience_ *= 2;
    return true;
  }
  // The time after which to call TakeStall again; infinite before the first Note.
  absl::Duration LookIn() const { return watched_.has_value() ? Patience() / 2 : absl::InfiniteDuration(); }

 private:
  struct Watched {
    SteadyTime since;
    SteadyTime grew;  // when `chunks` last changed, or when a stall was last reported
    uint64_t at_first = 0;
    uint64_t chunks = 0;
  };
  static constexpr int kPatienceChunks = 4;

  absl::Duration Patience() const {
    // The sum can fall when a source leaves.
    if (watched_->chunks <= watched_->at_first) return min_patience_;
    const auto came = static_cast<int64_t>(watched_->chunks - watched_->at_first);
    return std::max(min_patience_, kPatienceChunks * (watched_->grew - watched_->since) / came);
  }

  std::optional<Watched> watched_;
  absl::Duration min_patience_ = absl::Milliseconds(500);
};

}  // namespace tensorcast
