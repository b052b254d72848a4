// Tells when all sources of a transfer together have brought nothing new for too long: for half a second, or
// for four times the average time between two chunks if that is longer. Because a remedy may take a while,
// the limit doubles after each reported stall.
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
  // `chunks` is the number of chunks that all sources together have now, counted with repetition.
  void Note(uint64_t chunks, SteadyTime now) {
    if (!watched_.has_value()) watched_ = {.since = now, .grew = now, .at_first = chunks, .chunks = chunks};
    if (chunks == watched_->chunks) return;
    watched_->chunks = chunks;
    watched_->grew = now;
  }
  // Other sources are in use now, or none.
  void Reset() { *this = ProgressStall(); }

  // True once for each time that the limit passed.
  bool TakeStall(SteadyTime now) {
    if (!watched_.has_value() || now - watched_->grew < Patience()) return false;
    watched_->grew = now;
    min_patience_ *= 2;
    return true;
  }
  // How soon to look again; never while nothing is watched.
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
    // A source that left takes its chunks out of the sum.
    if (watched_->chunks <= watched_->at_first) return min_patience_;
    const auto came = static_cast<int64_t>(watched_->chunks - watched_->at_first);
    return std::max(min_patience_, kPatienceChunks * (watched_->grew - watched_->since) / came);
  }

  std::optional<Watched> watched_;
  absl::Duration min_patience_ = absl::Milliseconds(500);
};

}  // namespace tensorcast
