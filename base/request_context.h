// What a request carries through every layer: its deadline, its cancellation, its trace, and the request id
// that makes it idempotent. A value; nothing is thread-local.
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
  // Keeps a callback registered. The destructor unregisters the callback, and waits if another thread is
  // running the callback. Movable.
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
  // Runs `callback` on the thread that calls Cancel(), or at once if Cancel was called before.
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

  // A context with a fresh request id and trace, for work without a caller.
  static RequestContext Background(absl::Duration timeout = absl::InfiniteDuration());

  // A copy for a call on behalf of this request. The caller may change the copy. Spans of the copy and of
  // this context have the same parent.
  RequestContext Child() const;

  // OK, CANCELLED or DEADLINE_EXCEEDED; `what` names the work for the message.
  absl::Status Check(std::string_view what) const;
};

}  // namespace tensorcast
