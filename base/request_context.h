// What a request carries through every layer: how long it may take, whether it is still wanted, which
// trace it belongs to, and the id that makes it idempotent. A value: handlers pass it down, nothing is
// thread-local.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/trace_context.h"

namespace tensorcast {

// Tells, once, that a request is no longer wanted. Copies share one state. Thread-safe.
class Cancellation {
 public:
  // Keeps a callback registered; its destructor unregisters and waits for a running call of it to end
  // (unless it is that call itself that destroys it). Movable.
  class Registration {
   public:
    Registration() = default;
    Registration(Registration&&) noexcept;
    Registration& operator=(Registration&&) noexcept;
    ~Registration();

   private:
    friend class Cancellation;
    struct Entry;
    explicit Registration(std::shared_ptr<Entry> entry);
    std::shared_ptr<Entry> entry_;
  };

  Cancellation();

  // The first call runs the registered callbacks on this thread; later calls do nothing.
  void Cancel() const;
  bool IsCancelled() const;
  // Runs `callback` on Cancel(), or at once when already cancelled.
  [[nodiscard]] Registration OnCancel(std::function<void()> callback) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

struct RequestContext {
  SteadyTime deadline = SteadyTime::InfiniteFuture();
  Cancellation cancellation;
  TraceContext trace;
  std::string request_id;  // empty: the call is not a mutation

  // A context with a fresh request id and trace, for work that no call asked for.
  static RequestContext Background(absl::Duration timeout = absl::InfiniteDuration());

  // For a call on behalf of this one: the same in all but what the caller then changes. Its spans are
  // children of the same span, since span ids are made by spans (otel/api/span.h).
  RequestContext Child() const;

  // OK, CANCELLED or DEADLINE_EXCEEDED; `what` names the work for the message.
  absl::Status Check(std::string_view what) const;
};

}  // namespace tensorcast
