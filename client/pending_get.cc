// Client::StartGet: a get on a thread of its own.
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

struct PendingGet::State {
  explicit State(const RequestContext& context)
      : cancel_with_caller(
            context.cancellation.OnCancel([cancellation = cancellation] { cancellation.Cancel(); })) {}

  // Running, then done (`result` is set), then spent (Wait handed it out; `result` is set still).
  bool IsDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return result.has_value(); }

  const Cancellation cancellation;
  const Cancellation::Registration cancel_with_caller;
  absl::Mutex mutex;
  std::optional<absl::StatusOr<std::unique_ptr<Replica>>> result ABSL_GUARDED_BY(mutex);
  bool spent ABSL_GUARDED_BY(mutex) = false;
  std::thread thread;  // ends before all that it uses; none when it could not be started
};

PendingGet::PendingGet(std::unique_ptr<State> state) : state_(std::move(state)) {}

PendingGet::~PendingGet() {
  Cancel();
  if (state_->thread.joinable()) state_->thread.join();
}

absl::StatusOr<std::unique_ptr<Replica>> PendingGet::Wait(SteadyTime deadline) {
  absl::MutexLock lock(&state_->mutex);
  state_->mutex.AwaitWithTimeout(absl::Condition(state_.get(), &State::IsDone), TimeLeft(deadline));
  if (!state_->IsDone()) {
    return absl::DeadlineExceededError("the get is still running; wait for it again, or cancel it");
  }
  if (state_->spent) {
    return absl::FailedPreconditionError("this get was waited for already; its result is gone");
  }
  state_->spent = true;
  return *std::exchange(state_->result, absl::CancelledError("spent"));
}

void PendingGet::Cancel() { state_->cancellation.Cancel(); }

std::unique_ptr<PendingGet> Client::StartGet(const RequestContext& context, std::string_view artifact,
                                             const GetOptions& options) {
  auto state = std::make_unique<PendingGet::State>(context);
  RequestContext own = context;
  // Its own, so that PendingGet::Cancel does not cancel all else that runs under the caller's; the caller's
  // is passed on to it.
  own.cancellation = state->cancellation;
  // A client of its own, since the caller may destroy this one first.
  auto client = std::shared_ptr<Client>(new Client(session_));
  try {
    state->thread = std::thread([state = state.get(), client = std::move(client), own = std::move(own),
                                 artifact = std::string(artifact), options] {
      auto result = client->Get(own, artifact, options);
      absl::MutexLock lock(&state->mutex);
      state->result = std::move(result);
    });
  } catch (const std::system_error& error) {
    absl::MutexLock lock(&state->mutex);
    state->result = absl::ResourceExhaustedError(absl::StrCat(
        "cannot start a thread for the get: ", error.what(), "; call Get, or allow more threads or memory"));
  }
  return std::unique_ptr<PendingGet>(new PendingGet(std::move(state)));
}

}  // namespace tensorcast::client
