#include "rpc/backoff.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {

absl::Duration Backoff::Next() {
  const absl::Duration step = next_;
  next_ = std::min(next_ * options_.factor, options_.max);
  return step * absl::Uniform(random_, 0.5, 1.0);
}

absl::Status SleepFor(const RequestContext& context, absl::Duration duration, std::string_view what) {
  TC_RETURN_IF_ERROR(context.Check(what));
  if (SteadyNow() + duration >= context.deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat(what, ": the deadline leaves no time for another attempt"));
  }
  absl::Notification cancelled;
  {
    Cancellation::Registration registration =
        context.cancellation.OnCancel([&cancelled] { cancelled.Notify(); });
    cancelled.WaitForNotificationWithTimeout(duration);
  }
  return context.Check(what);
}

}  // namespace tensorcast::rpc
