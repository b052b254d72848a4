// Sums up the time in which at least one activity was under way. Thread-compatible.
#pragma once

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

class BusyTime {
 public:
  void Begin(SteadyTime now) {
    if (under_way_++ == 0) since_ = now;
  }
  // REQUIRES: more calls of Begin than of End so far.
  void End(SteadyTime now) {
    if (--under_way_ == 0) before_ += now - since_;
  }
  // The sum up to `now`. REQUIRES: `now` is not before the last Begin or End.
  absl::Duration Until(SteadyTime now) const {
    return before_ + (under_way_ > 0 ? now - since_ : absl::ZeroDuration());
  }

 private:
  int under_way_ = 0;
  SteadyTime since_;
  absl::Duration before_;
};

}  // namespace tensorcast
