#include "rpc/retry.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "proto/types.pb.h"
#include "rpc/call_contexts.h"

namespace tensorcast::rpc {
namespace {

const std::string& DoNotRetryUrl() {
  static const auto& url =
      *new std::string(absl::StrCat("type.googleapis.com/", v1::DoNotRetry::descriptor()->full_name()));
  return url;
}

}  // namespace

bool IsWorthRetrying(const absl::Status& status) {
  return absl::IsUnavailable(status) && !status.GetPayload(DoNotRetryUrl()).has_value();
}

absl::Status WithoutRetry(absl::Status status) {
  if (!status.ok()) status.SetPayload(DoNotRetryUrl(), absl::Cord(v1::DoNotRetry().SerializeAsString()));
  return status;
}

absl::Status SleepFor(const RequestContext& context, absl::Duration duration, std::string_view what) {
  TC_RETURN_IF_ERROR(context.Check(what));
  // No use to sleep up to the deadline: the caller hears now what it would hear then.
  if (SteadyNow() + duration >= context.deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat(what, ": the deadline leaves no time for another attempt; allow more time"));
  }
  // gRPC makes connections only while a thread waits in it, but for a look every five seconds: where nothing
  // is served and all callers sleep, a server that is back would not be noticed. So this sleep is in gRPC.
  grpc::CompletionQueue queue;
  grpc::Alarm woken;  // never by itself
  woken.Set(&queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), /*tag=*/nullptr);
  void* tag = nullptr;
  bool ok = false;
  {
    // The registration ends before the alarm does: its destructor waits for a callback that is running.
    const Cancellation::Registration registration =
        context.cancellation.OnCancel([&woken] { woken.Cancel(); });
    queue.AsyncNext(&tag, &ok, ToGrpcDeadline(SteadyNow() + duration));
  }
  // The alarm's event is still to come, or was taken above. The queue must be empty before it is destroyed.
  woken.Cancel();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return context.Check(what);
}

absl::Duration Backoff::Next() {
  const absl::Duration step = next_;
  next_ = std::min(next_ * options_.factor, options_.max);
  // Jitter, so that callers that were refused together do not come back together.
  return step * absl::Uniform(random_, 0.5, 1.0);
}

}  // namespace tensorcast::rpc
