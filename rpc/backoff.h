// Waiting between attempts: exponential with jitter, and cut short when nobody wants the result any more.
#pragma once

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/request_context.h"

namespace tensorcast::rpc {

// Thread-compatible.
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

// OK after `duration`; at once DEADLINE_EXCEEDED when the context's deadline comes before that, and CANCELLED
// as soon as it is cancelled. `what` names the work for the message.
absl::Status SleepFor(const RequestContext& context, absl::Duration duration, std::string_view what);

}  // namespace tensorcast::rpc
