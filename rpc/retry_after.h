// An overloaded server says when to retry: UNAVAILABLE with the detail RetryAfter of proto/types.proto. Every
// caller that retries obeys it. Thread-safe functions.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rpc/retry.h"

namespace tensorcast::rpc {

// The max delay that callers obey.
inline constexpr absl::Duration kMaxRetryAfter = absl::Minutes(1);

// The error of a server that did not begin the call: the caller must wait at least `delay` before it retries.
absl::Status RetryLater(std::string_view message, absl::Duration delay);
// The delay in an error of RetryLater, between zero and kMaxRetryAfter; nullopt if the error has no delay.
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);

// How long to wait after this error: a random duration of 1 to 1.5 times the delay in the error. If the error
// has no delay, the backoff's next step.
absl::Duration WaitAfter(const absl::Status& error, Backoff& backoff);

}  // namespace tensorcast::rpc
