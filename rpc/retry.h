// Decides which errors are worth a retry, and how long to wait between attempts.
#pragma once

#include <string_view>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/request_context.h"

namespace tensorcast::rpc {

// UNAVAILABLE is worth a retry, unless it carries the mark of WithoutRetry. Thread-safe, like the next two
// functions.
bool IsWorthRetrying(const absl::Status& status);

// Marks an error as not worth a retry, because this process has already waited long enough. OK stays OK. The
// mark travels with the status from server to client (DoNotRetry in proto/types.proto).
absl::Status WithoutRetry(absl::Status status);

// Sleeps for `duration`, and returns OK. Returns DEADLINE_EXCEEDED at once if the context's deadline is
// earlier, and CANCELLED as soon as the context is cancelled. `what` names the work in the message.
absl::Status SleepFor(const RequestContext& context, absl::Duration duration, std::string_view what);

// The wait before each next attempt: exponential, with jitter. Thread-compatible.
class Backoff {
 public:
  struct Options {
    absl::Duration initial = absl::Milliseconds(50);
    absl::Duration max = absl::Seconds(2);
    double factor = 2.0;
  };

  Backoff() : Backoff(Options{}) {}
  explicit Backoff(const Options& options) : options_(options), next_(options.initial) {}

  // A random duration between half and all of the current step. Each call makes the next step longer.
  absl::Duration Next();
  void Reset() { next_ = options_.initial; }

 private:
  Options options_;
  absl::Duration next_;
  absl::BitGen random_;
};

}  // namespace tensorcast::rpc
