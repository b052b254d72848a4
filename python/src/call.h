// An operation of the client library under way on a thread of its own, so that Python can wait for it in
// steps (Ctrl-C), by a descriptor (asyncio), or not at all. The thread never enters the interpreter: it
// leaves its result, its progress and its news to callers that hold the GIL, so that neither a finalized
// interpreter nor one that is busy can stop it.
//
// Threading: every method is called with the GIL, and from any thread. After a fork the child's copy is an
// empty shell: its methods raise, and its destructor leaves everything to the parent.
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

// Makes a Python object, with the GIL.
using Maker = absl::AnyInvocable<nanobind::object() &&>;

class Call {
 public:
  struct State;

  // What the operation tells while it runs. Thread-safe.
  class Listener {
   public:
    explicit Listener(State* state) : state_(state) {}
    void OnProgress(const TransferProgress& progress) const;
    void OnNews(Maker news) const;

   private:
    State* const state_;
  };
  // Runs on the call's thread, without the GIL, and without touching any object of Python.
  using Work = absl::AnyInvocable<absl::StatusOr<Maker>(const RequestContext&, const Listener&) &&>;

  // `borrowed` is kept until the work has ended. `traceparent` may be empty.
  Call(Work work, SteadyTime deadline, const std::string& traceparent,
       nanobind::object borrowed = nanobind::none());
  // Cancels the operation, and waits for its end.
  ~Call();
  Call(Call&& other) noexcept = default;

  // Waits at most so long for the end, or for news that were not taken. True: there is either.
  bool Wait(double seconds);
  // Readable once Wait would return true.
  int Descriptor();
  void Cancel();
  // (bytes done, bytes in all, bytes that were there before, what it waits for), or None before any.
  nanobind::object Progress();
  // The news since the previous Take, in their order.
  nanobind::list Take();
  // Of a call that has ended, once. Raises its error.
  nanobind::object Result();

 private:
  std::shared_ptr<State> state_;
  nanobind::object borrowed_;
};

// Cancels every call there is and waits, for a few seconds at most, until they have ended. At the
// interpreter's exit: threads that wait for calls never come back from it.
void CancelAllCalls();

void BindCall(nanobind::module_& module);

}  // namespace tensorcast::python
