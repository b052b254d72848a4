// An overloaded server says when it wants to be asked again: UNAVAILABLE with the detail RetryAfter of
// proto/types.proto. Servers write it, and every caller that retries obeys it. Thread-safe functions.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rpc/retry.h"

namespace tensorcast::rpc {

// Callers wait no longer than this, whatever a server writes.
inline constexpr absl::Duration kMaxRetryAfter = absl::Minutes(1);

// The error of a server that did not begin the call: the caller retries after `delay` at the earliest.
absl::Status RetryLater(std::string_view message, absl::Duration delay);
// The delay in the error of RetryLater, between zero and kMaxRetryAfter; nullopt if the error has none.
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);

// How long to wait after this error: 1 to 1.5 times the delay that the server asked for; the backoff's next
// step if the error has no delay.
absl::Duration WaitAfter(const absl::Status& error, Backoff& backoff);

}  // namespace tensorcast::rpc
