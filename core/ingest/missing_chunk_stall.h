// An ingest gives up its sources when all sources have lacked all missing chunks for the time `limit`. This
// class finds that moment. A source that joins or leaves does not restart the limit. So receivers that lack
// the same chunk do not keep each other waiting.
//
// A source that joins near the end of the limit still gets a short time to announce its chunks: at least half
// a second, or a quarter of the limit if that is shorter.
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
  // A source joined or left: there may be a chunk to request.
  void NoteSources(SteadyTime now) {
    if (idle()) dry_ += now - since_;
    since_ = ends_ = SteadyTime::InfiniteFuture();
  }
  // All sources lack all missing chunks, and no fetch is in flight.
  void NoteNothing(SteadyTime now) {
    if (idle()) return;
    since_ = now;
    ends_ = now + std::max(limit_ - dry_, NewcomersTime());
  }

  bool idle() const { return since_ != SteadyTime::InfiniteFuture(); }
  // The start of the idle time with the current sources, and the time at which to give up these sources. Both
  // are InfiniteFuture if not idle.
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
