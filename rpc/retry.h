// Retries: which errors are worth a retry, and how long to wait between attempts.
#pragma once

#include <string_view>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/request_context.h"

namespace tensorcast::rpc {

// UNAVAILABLE is worth another attempt, unless the status says otherwise (WithoutRetry). Thread-safe, as are
// the next two.
bool IsWorthRetrying(const absl::Status& status);

// The same error, marked as not to be retried: the process that returns it has waited as long as makes sense.
// OK stays OK. The mark travels with the status from server to client (DoNotRetry in proto/types.proto), so
// that not every process on the way waits in turn.
absl::Status WithoutRetry(absl::Status status);

// Returns OK after `duration`; at once DEADLINE_EXCEEDED if the context's deadline comes before that, and
// CANCELLED as soon as it is cancelled. `what` names the work for the message.
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

  // Between half and all of the current step; each call makes the next step longer.
  absl::Duration Next();
  void Reset() { next_ = options_.initial; }

 private:
  Options options_;
  absl::Duration next_;
  absl::BitGen random_;
};

}  // namespace tensorcast::rpc
