// Waiting in a test for what other threads or processes bring about and nothing tells.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace tensorcast::testing {

// Looks every millisecond until the condition holds; false when it did not within a time that only a hang
// takes. Where a thread can be told, a lock's Await or a Notification is the better way.
[[nodiscard]] bool Eventually(absl::FunctionRef<bool()> condition, absl::Duration max = absl::Seconds(60));

}  // namespace tensorcast::testing
