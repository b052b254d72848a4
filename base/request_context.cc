#include "base/request_context.h"

#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "base/steady_time.h"

namespace tensorcast {

// A callback is in one of three places: in `waiting`, with the thread that runs it (`running_key`), or gone.
// Both Cancel and Unregister take it out of `waiting` under the mutex, so it runs at most once, and never
// begins after its registration has ended.
struct Cancellation::State {
  // Read without the lock on hot paths; set under it, so that no registration slips in between.
  std::atomic<bool> cancelled{false};

  absl::Mutex mutex;
  uint64_t next_key ABSL_GUARDED_BY(mutex) = 1;
  // In order of registration.
  std::map<uint64_t, std::shared_ptr<Registration::Entry>> waiting ABSL_GUARDED_BY(mutex);
  // The callback that Cancel() is in; 0 for none. There is one such thread at most: only the first call runs
  // them.
  uint64_t running_key ABSL_GUARDED_BY(mutex) = 0;
  std::thread::id running_thread ABSL_GUARDED_BY(mutex);
};

// The thread that took the entry out of `waiting` owns its callback.
struct Cancellation::Registration::Entry {
  std::shared_ptr<State> state;
  uint64_t key = 0;
  std::function<void()> callback;

  void Unregister() {
    std::shared_ptr<Entry>
        removed;  // destroyed after the lock: the callback's captures are the caller's code
    absl::MutexLock lock(&state->mutex);
    if (auto found = state->waiting.find(key); found != state->waiting.end()) {
      removed = std::move(found->second);
      state->waiting.erase(found);
      return;
    }
    // This is a callback that destroys a registration: to wait for its own end would be a deadlock.
    if (state->running_thread == std::this_thread::get_id()) return;
    auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(state->mutex) { return state->running_key != key; };
    state->mutex.Await(absl::Condition(&ended));
  }
};

Cancellation::Registration::Registration(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
Cancellation::Registration::Registration(Registration&& other) noexcept = default;

Cancellation::Registration& Cancellation::Registration::operator=(Registration&& other) noexcept {
  if (this != &other) {
    Registration old(std::move(*this));
    entry_ = std::move(other.entry_);
  }
  return *this;
}

Cancellation::Registration::~Registration() {
  if (entry_ != nullptr) entry_->Unregister();
}

Cancellation::Cancellation() : state_(std::make_shared<State>()) {}

void Cancellation::Cancel() const {
  // A callback may drop the last other reference to this object.
  const std::shared_ptr<State> state = state_;
  absl::ReleasableMutexLock first(&state->mutex);
  if (state->cancelled.load(std::memory_order_relaxed)) return;
  state->cancelled.store(true, std::memory_order_release);
  state->running_thread = std::this_thread::get_id();
  first.Release();

  // Callbacks run without the lock, one at a time: they may register, unregister, and destroy what holds this
  // object. Each leaves `waiting` before it runs, and running_key tells Unregister for which one it has to
  // wait.
  while (true) {
    std::shared_ptr<Registration::Entry> entry;
    {
      absl::MutexLock lock(&state->mutex);
      state->running_key = 0;
      if (state->waiting.empty()) {
        state->running_thread = {};
        return;
      }
      auto next = state->waiting.begin();
      state->running_key = next->first;
      entry = std::move(next->second);
      state->waiting.erase(next);
    }
    entry->callback();
    entry->callback =
        nullptr;  // before it counts as ended: what it captured may go with the registration's owner
  }
}

bool Cancellation::IsCancelled() const { return state_->cancelled.load(std::memory_order_acquire); }

Cancellation::Registration Cancellation::OnCancel(std::function<void()> callback) const {
  {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->cancelled.load(std::memory_order_relaxed)) {
      auto entry = std::make_shared<Registration::Entry>();
      entry->state = state_;
      entry->key = state_->next_key++;
      entry->callback = std::move(callback);
      state_->waiting.emplace(entry->key, entry);
      return Registration(std::move(entry));
    }
  }
  // Without the lock, as from Cancel().
  callback();
  return Registration();
}

RequestContext RequestContext::Background(absl::Duration timeout) {
  RequestContext context;
  context.deadline = SteadyNow() + timeout;
  context.trace = TraceContext::NewRoot();
  context.request_id = NewUuid();
  return context;
}

RequestContext RequestContext::Child() const { return *this; }

absl::Status RequestContext::Check(std::string_view what) const {
  if (cancellation.IsCancelled()) {
    return absl::CancelledError(absl::StrCat(what, ": cancelled by the caller"));
  }
  if (deadline == SteadyTime::InfiniteFuture()) return absl::OkStatus();
  const absl::Duration late = SteadyNow() - deadline;
  if (late < absl::ZeroDuration()) return absl::OkStatus();
  const absl::Duration shown = absl::Trunc(late, absl::Milliseconds(1));
  const std::string ago =
      shown > absl::ZeroDuration() ? absl::StrCat(" ", absl::FormatDuration(shown), " ago") : "";
  return absl::DeadlineExceededError(absl::StrCat(what, ": the deadline passed", ago, "; allow more time"));
}

}  // namespace tensorcast
