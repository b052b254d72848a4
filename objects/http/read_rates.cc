#include "objects/http/read_rates.h"

#include <algorithm>

#include "absl/synchronization/notification.h"
#include "base/steady_time.h"

namespace tensorcast::objects {

absl::Status ReadRates::Await(const RequestContext& context, const std::string& origin, uint64_t bytes,
                              std::string_view subject) {
  const SteadyTime now = SteadyNow();
  SteadyTime turn;
  {
    absl::MutexLock lock(&mutex_);
    // The bytes are spent before they are read, under one lock: a caller that comes next gets a later turn in
    // both limits, and the callers wait in the order in which they came.
    turn = all_.ReadyAt(now);
    all_.Spend(bytes, now);
    if (of_origin_ > 0) {
      RateLimit& of_origin = origins_.try_emplace(origin, of_origin_).first->second;
      turn = std::max(turn, of_origin.ReadyAt(now));
      of_origin.Spend(bytes, now);
    }
  }
  if (turn <= now) return absl::OkStatus();
  absl::Notification cancelled;
  const auto on_cancel = context.cancellation.OnCancel([&] { cancelled.Notify(); });
  // A caller that gives up has spent its bytes all the same: its place in the order is not given to another
  // one.
  cancelled.WaitForNotificationWithTimeout(std::min(turn, context.deadline) - now);
  return context.Check(subject);
}

}  // namespace tensorcast::objects
