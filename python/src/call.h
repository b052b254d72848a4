// An operation of the client library that runs on its own thread. Python waits for a Call in steps (Ctrl-C),
// by a descriptor (asyncio), or not at all. The thread never enters the interpreter: it stores the result,
// progress and news, and callers with the GIL fetch them.
//
// Threading: every method is called with the GIL, and from any thread. After a fork the child's copy is
// unusable: its methods raise, and its destructor does nothing.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::python {

// Makes a Python object. Called with the GIL.
using Maker = absl::AnyInvocable<nanobind::object() &&>;

class Call {
 public:
  struct State;

  // Receives progress and news (the items of a watch or a list) from a running operation. Thread-safe.
  class Listener {
   public:
    explicit Listener(State* state) : state_(state) {}
    void OnProgress(const TransferProgress& progress) const;
    void OnNews(Maker news) const;

   private:
    State* const state_;
  };
  // Runs on the call's thread, without the GIL. It must not touch any Python object.
  using Work = absl::AnyInvocable<absl::StatusOr<Maker>(const RequestContext&, const Listener&) &&>;

  // `borrowed` is kept until the work has ended. `traceparent` may be empty.
  Call(Work work, SteadyTime deadline, const std::string& traceparent,
       nanobind::object borrowed = nanobind::none());
  // Cancels the operation, and waits for its end.
  ~Call();
  Call(Call&& other) noexcept = default;

  // Waits at most `seconds` until the call has ended or has news for Take. False: neither happened.
  bool Wait(double seconds);
  // A file descriptor that becomes readable when Wait would return true.
  int Descriptor();
  void Cancel();
  // (bytes done, total bytes, bytes that were already present, what the call waits for), or None before the
  // first progress report.
  nanobind::object Progress();
  // The news since the previous Take, in the order of arrival.
  nanobind::list Take();
  // Returns the result, or raises the call's error. REQUIRES: the call has ended. May be called once.
  nanobind::object Result();

 private:
  std::shared_ptr<State> state_;
  nanobind::object borrowed_;
};

// Cancels every call and waits at most a few seconds until they have ended. Runs at the interpreter's exit.
// Afterwards, threads that wait for a call never return to Python.
void CancelAllCalls();

void BindCall(nanobind::module_& module);

}  // namespace tensorcast::python
