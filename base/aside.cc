#include "base/aside.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {
namespace {

// Limit of calls left alone at once: more than these would be an unnoticed leak.
constexpr int kMaxLeft = 64;

std::atomic<int> left_alone = 0;

// Of one piece of work and its caller; the last of the two destroys it.
struct Meeting {
  absl::Mutex mutex;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  bool left ABSL_GUARDED_BY(mutex) = false;

  // Only work that was left counts as left alone, until that work ends. The mutex decides whether it ended
  // before its caller left.
  void End() {
    absl::MutexLock lock(&mutex);
    ended = true;
    if (left) left_alone.fetch_sub(1);
  }
  void Cancel() {
    absl::MutexLock lock(&mutex);
    cancelled = true;
  }
  bool Await(SteadyTime deadline) {
    const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex) { return ended || cancelled; };
    absl::MutexLock lock(&mutex);
    return mutex.AwaitWithTimeout(absl::Condition(&over), TimeLeft(deadline));
  }
  // Whether the work has ended. If not, its caller leaves.
  bool EndOrLeave() {
    absl::MutexLock lock(&mutex);
    if (ended) return true;
    left = true;
    left_alone.fetch_add(1);
    return false;
  }
};

}  // namespace

bool RunDetached(absl::AnyInvocable<void() &&> work) {
  try {
    std::thread([work = std::move(work)]() mutable { std::move(work)(); }).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

// Three ends: the work ends (OK); the context ends, and the work is left alone and counted until it ends; or
// the work cannot begin.
absl::Status AwaitAside(const RequestContext& context, std::string_view what,
                        absl::AnyInvocable<void() &&> work, const OnSlow& on_slow) {
  TC_RETURN_IF_ERROR(context.Check(what));
  // This check and the count in EndOrLeave are two steps, so a few more may be left alone than kMaxLeft: the
  // limit only has to stop a leak.
  if (const int left = left_alone.load(); left >= kMaxLeft) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": ", left,
                     " operations hang on file systems that do not answer; repair or unmount these file "
                     "systems"));
  }
  auto meeting = std::make_shared<Meeting>();
  const bool started = RunDetached([meeting, work = std::move(work)]() mutable {
    std::move(work)();
    work = nullptr;  // what it captured goes before its end is told
    meeting->End();
  });
  if (!started) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what,
        ": no thread can be started; raise the limit of threads (`ulimit -u`, or TasksMax= of the systemd "
        "unit)"));
  }
  const auto on_cancel = context.cancellation.OnCancel([meeting] { meeting->Cancel(); });
  const SteadyTime slow = SteadyNow() + kSlowAside;
  // The first wait is short, so that the observer hears of a file system that hangs long before the deadline.
  if (!meeting->Await(std::min(context.deadline, slow)) && context.deadline > slow) {
    if (on_slow) on_slow(true);
    meeting->Await(context.deadline);
    if (on_slow) on_slow(false);
  }
  // Work that ended since the wait counts as done, even after the deadline.
  if (meeting->EndOrLeave()) return absl::OkStatus();
  // Check reads the clock anew, and may find some time left where the wait found none.
  const absl::Status why = context.Check(what);
  if (!why.ok()) return why;
  return absl::DeadlineExceededError(absl::StrCat(what, ": the deadline passed; allow more time"));
}

}  // namespace tensorcast
