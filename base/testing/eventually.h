// Waits in a test for an effect of other threads or processes that the test cannot be notified of.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace tensorcast::testing {

// Checks `condition` every millisecond until it holds. Returns false when it does not hold within `max`, by
// default a time that only a hang takes. Where a thread can be notified, a mutex's Await or a Notification is
// better.
[[nodiscard]] bool Eventually(absl::FunctionRef<bool()> condition, absl::Duration max = absl::Seconds(60));

}  // namespace tensorcast::testing
