// Tells when a transfer gives up its sources because none of them has a missing chunk: after that has lasted
// for the limit, even if sources came and went meanwhile. If each new source restarted the limit, receivers
// that lack the same chunk would keep each other waiting, one limit after the other. A source that comes near
// the end still gets some time to announce its chunks: the rest of one and a half limits, but at most a
// quarter of the limit, and at least half a second if that is less than the quarter.
//
// Thread-compatible.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

class MissingChunkStall {
 public:
  explicit MissingChunkStall(absl::Duration limit) : limit_(limit) {}

  // A chunk is in flight.
  void NoteChunk() {
    dry_ = absl::ZeroDuration();
    since_ = ends_ = SteadyTime::InfiniteFuture();
  }
  // A source came or went: there may be a chunk to request.
  void NoteSources(SteadyTime now) {
    if (idle()) dry_ += now - since_;
    since_ = ends_ = SteadyTime::InfiniteFuture();
  }
  // No source has a missing chunk, and no fetch is in flight.
  void NoteNothing(SteadyTime now) {
    if (idle()) return;
    since_ = now;
    ends_ = now + std::max(limit_ - dry_, NewcomersTime());
  }

  bool idle() const { return since_ != SteadyTime::InfiniteFuture(); }
  // When the idle time with the current sources began, and when it ends. Both are InfiniteFuture if not idle.
  SteadyTime since() const { return since_; }
  SteadyTime ends() const { return ends_; }

 private:
  absl::Duration NewcomersTime() const {
    const absl::Duration max = limit_ / 4;
    return std::clamp(1.5 * limit_ - dry_, std::min(max, absl::Milliseconds(500)), max);
  }

  const absl::Duration limit_;
  absl::Duration dry_;  // idle time with previous sources, since a chunk was last in flight
  SteadyTime since_ = SteadyTime::InfiniteFuture();
  SteadyTime ends_ = SteadyTime::InfiniteFuture();
};

}  // namespace tensorcast
