// Tells when the sources of a transfer are to be given up because none of them has a chunk that is missing:
// once that has been so for the limit, whichever sources came and went. If each new source started the
// time anew, receivers that lack the same chunk would keep each other waiting, one limit after the other. But
// a source that comes at about the end of the limit has a while to announce what it has: a quarter of the
// limit, or what is left of one and a half limits, or half a second.
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

  // A chunk is under way.
  void NoteChunk() {
    dry_ = absl::ZeroDuration();
    since_ = ends_ = SteadyTime::InfiniteFuture();
  }
  // A source came or went: there may be something to ask for.
  void NoteSources(SteadyTime now) {
    if (idle()) dry_ += now - since_;
    since_ = ends_ = SteadyTime::InfiniteFuture();
  }
  // There is nothing to ask any source for, and nothing under way.
  void NoteNothing(SteadyTime now) {
    if (idle()) return;
    since_ = now;
    ends_ = now + std::max(limit_ - dry_, NewcomersTime());
  }

  bool idle() const { return since_ != SteadyTime::InfiniteFuture(); }
  // Since when, with the current sources; InfiniteFuture: it is not idle, as in ends().
  SteadyTime since() const { return since_; }
  SteadyTime ends() const { return ends_; }

 private:
  absl::Duration NewcomersTime() const {
    const absl::Duration max = limit_ / 4;
    return std::clamp(1.5 * limit_ - dry_, std::min(max, absl::Milliseconds(500)), max);
  }

  const absl::Duration limit_;
  absl::Duration dry_;  // idle with the previous sources, since a chunk was under way
  SteadyTime since_ = SteadyTime::InfiniteFuture();
  SteadyTime ends_ = SteadyTime::InfiniteFuture();
};

}  // namespace tensorcast
