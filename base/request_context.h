// What a request carries through every layer: its deadline, its cancellation, its trace, and the request id
// that makes it idempotent. A value: handlers pass it down; nothing is thread-local.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/trace_context.h"

namespace tensorcast {

// Signals once that a request is no longer wanted. Copies share one state. Thread-safe.
class Cancellation {
 public:
  // Keeps a callback registered. Its destructor unregisters the callback and waits for a running call of it
  // to end, unless that call itself destroys the registration. Movable.
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

  // A context for a call on behalf of this one: a copy that the caller may change. Its spans become children
  // of the same span, since spans make span ids (otel/api/span.h).
  RequestContext Child() const;

  // OK, CANCELLED or DEADLINE_EXCEEDED; `what` names the work for the message.
  absl::Status Check(std::string_view what) const;
};

}  // namespace tensorcast
