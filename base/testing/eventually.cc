#include "base/testing/eventually.h"

#include "absl/time/clock.h"
#include "base/steady_time.h"

namespace tensorcast::testing {

bool Eventually(absl::FunctionRef<bool()> condition, absl::Duration max) {
  const SteadyTime deadline = SteadyNow() + max;
  while (!condition()) {
    if (SteadyNow() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace tensorcast::testing
