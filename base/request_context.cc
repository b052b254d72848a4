#include "base/request_context.h"

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/steady_time.h"

namespace tensorcast {

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
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": the deadline passed ",
                   absl::FormatDuration(absl::Trunc(late, absl::Milliseconds(1))), " ago; allow more time"));
}

}  // namespace tensorcast
