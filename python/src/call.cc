#include "python/src/call.h"

#include <nanobind/stl/string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "python/src/errors.h"
#include "python/src/without_gil.h"

namespace nb = nanobind;

namespace tensorcast::python {

// Shared by the call and its thread.
// Two sides use it: the call's thread, which never has the GIL, writes the result, the news and the progress;
// threads of Python read them. Threads of Python take the mutex with the GIL held, except in a wait: with the
// mutex held they make no Python object and raise nothing, since that may run Python code, which may give the
// GIL to a thread that then waits for the mutex.
struct Call::State {
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return result.has_value() || !news.empty(); }
  void Announce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (descriptor) eventfd_write(descriptor.get(), 1);
  }

  const ProcessMark process;
  const Cancellation cancellation;
  absl::Mutex mutex;
  std::optional<absl::StatusOr<Maker>> result ABSL_GUARDED_BY(mutex);  // set: the work has ended
  bool spent ABSL_GUARDED_BY(mutex) = false;                           // and its result was given away
  std::deque<Maker> news ABSL_GUARDED_BY(mutex);
  std::optional<TransferProgress> progress ABSL_GUARDED_BY(mutex);
  UniqueFd descriptor ABSL_GUARDED_BY(mutex);
  std::thread thread;
};

namespace {

// The exit of the interpreter waits for so long for the calls under way.
constexpr absl::Duration kEndOfAll = absl::Seconds(5);

// Those under way, for the end of the interpreter.
struct Running {
  const ProcessMark process;  // in which the first call was made
  absl::Mutex mutex;
  std::set<Call::State*> calls ABSL_GUARDED_BY(mutex);
  bool IsEmpty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return calls.empty(); }
};

// The list is never destroyed, since threads of calls may outlive the static objects.
Running& AllRunning() {
  static absl::NoDestructor<Running> running;
  return *running;
}

RequestContext ContextOf(const Cancellation& cancellation, SteadyTime deadline,
                         const std::string& traceparent) {
  RequestContext context;
  context.cancellation = cancellation;
  context.deadline = deadline;
  if (auto trace = TraceContext::FromTraceparent(traceparent); trace.has_value()) context.trace = *trace;
  return context;
}

// The result is announced last: a caller that sees it may end the call, and joins this thread.
// Runs on the call's thread. The maker in the result is not run here: it makes Python objects.
void Run(Call::State& state, Call::Work work, const RequestContext& context) {
  absl::StatusOr<Maker> result = std::move(work)(context, Call::Listener(&state));
  {
    // The call leaves the list first: once the result is seen, the state may go.
    absl::MutexLock lock(&AllRunning().mutex);
    AllRunning().calls.erase(&state);
  }
  absl::MutexLock lock(&state.mutex);
  state.result = std::move(result);
  state.Announce();
}

}  // namespace

void Call::Listener::OnProgress(const TransferProgress& progress) const {
  absl::MutexLock lock(&state_->mutex);
  state_->progress = progress;
}

void Call::Listener::OnNews(Maker news) const {
  absl::MutexLock lock(&state_->mutex);
  state_->news.push_back(std::move(news));
  state_->Announce();
}

Call::Call(Work work, SteadyTime deadline, const std::string& traceparent, nb::object borrowed)
    : state_(std::make_shared<State>()), borrowed_(std::move(borrowed)) {
  {
    absl::MutexLock lock(&AllRunning().mutex);
    // Before the thread starts, since Run takes the call out of the list.
    AllRunning().calls.insert(state_.get());
  }
  RequestContext context = ContextOf(state_->cancellation, deadline, traceparent);
  try {
    // The thread uses the state by its address: the destructor joins it before the state goes.
    state_->thread = std::thread([state = state_.get(), work = std::move(work), context]() mutable {
      Run(*state, std::move(work), context);
    });
  } catch (const std::system_error& error) {
    {
      absl::MutexLock lock(&AllRunning().mutex);
      AllRunning().calls.erase(state_.get());
    }
    Raise(absl::ResourceExhaustedError(
        absl::StrCat("start a call: this process cannot start a thread: ", error.what(),
                     "; raise the limit of threads (`ulimit -u`, or pids.max of the container)")));
  }
}

Call::~Call() {
  if (state_ == nullptr) return;
  if (state_->process.Forked()) {
    // Its thread is the parent's, and what it holds may be locked for ever.
    new std::shared_ptr<State>(std::move(state_));  // NOLINT: left alone on purpose
    borrowed_.release();
    return;
  }
  // The GIL is released here: the call takes its time to see that it is cancelled, and other threads may run
  // meanwhile.
  const WithoutGil released;
  state_->cancellation.Cancel();
  state_->thread.join();
}

// Without the GIL, as are all waits here, so that other Python threads run meanwhile.
bool Call::Wait(double seconds) {
  state_->process.Check();
  const WithoutGil released;
  absl::MutexLock lock(&state_->mutex);
  return state_->mutex.AwaitWithTimeout(absl::Condition(state_.get(), &State::HasNews),
                                        absl::Seconds(seconds));
}

// Made when it is first asked for: a caller that waits by Wait needs none. What was announced before is
// announced again.
int Call::Descriptor() {
  state_->process.Check();
  int error = 0;
  {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->descriptor) {
      state_->descriptor = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      error = errno;
      if (state_->HasNews()) state_->Announce();
    }
    if (state_->descriptor) return state_->descriptor.get();
  }
  Raise(absl::ErrnoToStatus(error, "create an eventfd"));
}

void Call::Cancel() {
  if (state_->process.Forked()) return;
  const WithoutGil released;
  state_->cancellation.Cancel();
}

nb::object Call::Progress() {
  state_->process.Check();
  std::optional<TransferProgress> progress;
  {
    absl::MutexLock lock(&state_->mutex);
    progress = state_->progress;
  }
  if (!progress.has_value()) return nb::none();
  return nb::make_tuple(progress->bytes_done, progress->bytes_total, progress->bytes_present,
                        progress->waiting_for);
}

// The Python objects are made without the lock: making them may run Python code.
nb::list Call::Take() {
  state_->process.Check();
  std::deque<Maker> news;
  {
    absl::MutexLock lock(&state_->mutex);
    news.swap(state_->news);
    // The descriptor stays readable once the call has ended.
    eventfd_t count = 0;
    if (state_->descriptor && !state_->result.has_value()) eventfd_read(state_->descriptor.get(), &count);
  }
  nb::list taken;
  for (Maker& made : news) taken.append(std::move(made)());
  return taken;
}

nb::object Call::Result() {
  state_->process.Check();
  std::optional<absl::StatusOr<Maker>> result;
  bool spent = false;
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->result.has_value()) {
      spent = std::exchange(state_->spent, true);
      result = std::exchange(state_->result, absl::CancelledError("spent"));
    }
  }
  if (!result.has_value()) {
    Raise(absl::FailedPreconditionError("take a result: the call has not ended yet; wait for the call"));
  }
  if (spent) {
    Raise(absl::FailedPreconditionError("take a result: the result was taken already; start another call"));
  }
  // The arrays that the work read are not needed any more.
  borrowed_ = nb::none();
  if (!result->ok()) Raise(result->status());
  return (**std::move(result))();
}

// For the exit of the interpreter: no thread of ours may touch Python after it, and calls get kEndOfAll to
// end.
void CancelAllCalls() {
  if (AllRunning().process.Forked()) return;
  // Threads are kept from taking the GIL again first, so that none of ours is on its way back to an
  // interpreter that goes.
  BlockGilReturns();
  const WithoutGil released;
  std::vector<Cancellation> cancellations;
  {
    absl::MutexLock lock(&AllRunning().mutex);
    // Copies share the state of a cancellation. Cancel runs callbacks, which must not find the list locked.
    for (const Call::State* state : AllRunning().calls) cancellations.push_back(state->cancellation);
  }
  for (const Cancellation& cancellation : cancellations) cancellation.Cancel();
  absl::MutexLock lock(&AllRunning().mutex);
  // A call that does not end in time is left alone: the process is about to exit.
  AllRunning().mutex.AwaitWithTimeout(absl::Condition(&AllRunning(), &Running::IsEmpty), kEndOfAll);
}

void BindCall(nb::module_& module) {
  nb::class_<Call>(module, "Call", "An operation that runs on its own thread.")
      .def("wait", &Call::Wait, nb::arg("seconds"),
           "Waits for the end of the call, or for news to take. False: neither came in time.")
      .def("fileno", &Call::Descriptor, "A descriptor that becomes readable when wait() would return True.")
      .def("cancel", &Call::Cancel, "Cancels the call, and returns at once.")
      .def("progress", &Call::Progress, nb::sig("def progress(self) -> tuple[int, int, int, str] | None"),
           "(bytes done, total bytes, bytes present before, what the call waits for).")
      .def("take", &Call::Take, nb::sig("def take(self) -> list[dict[str, typing.Any]]"),
           "Returns the news since the previous take().")
      .def("result", &Call::Result, nb::sig("def result(self) -> typing.Any"),
           "Returns the result of an ended call, once, or raises its error.");
  module.def("cancel_all_calls", &CancelAllCalls, "Cancels all calls, at the interpreter's exit.");
}

}  // namespace tensorcast::python
