#include "rpc/call.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "rpc/call_contexts.h"
#include "rpc/epoch.h"
#include "rpc/protocol_version.h"
#include "rpc/retry.h"
#include "rpc/retry_after.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {

void NoteRetry(otel::Span& span, const Attempt& attempt) {
  if (attempt.number == 1 || !span.recording()) return;
  span.SetAttribute(otel::attr::kAttempt, attempt.number);
  span.AddEvent("retry", {{otel::attr::kAttempt, attempt.number},
                          {otel::attr::kReason, absl::StatusCodeToString(attempt.previous.code())},
                          {otel::attr::kExceptionMessage, attempt.previous.message()}});
}

// What a call carries is filed before gRPC sees it: the interceptor that looks it up runs within the call's
// first operation.
ClientCall::ClientCall(const RequestContext& context, const Attempt& attempt, const CallOptions& options)
    : context_(context), fence_(options.fence) {
  if (!options.on_behalf_of.empty()) call_.AddMetadata(kCallerKey, options.on_behalf_of);
  if (attempt.number > 1) call_.AddMetadata(kAttemptKey, std::to_string(attempt.number));
  CallContexts::ForClient().File(&call_, {.context = context});
  if (context.deadline != SteadyTime::InfiniteFuture()) call_.set_deadline(ToGrpcDeadline(context.deadline));
  // A cancellation that came before the call began is remembered by gRPC.
  cancel_ = context.cancellation.OnCancel([this] { call_.TryCancel(); });
}

ClientCall::~ClientCall() { CallContexts::ForClient().Remove(&call_); }

absl::Status ClientCall::CheckServer() const {
  TC_RETURN_IF_ERROR(CheckServersVersion(call_));
  return fence_ != nullptr ? fence_->Check(call_) : absl::OkStatus();
}

// The order of the checks: a server that another one has replaced is fenced off first, whatever it answers.
// The errors that gRPC itself makes then get a text of ours.
absl::Status ClientCall::Outcome(const grpc::Status& status) const {
  if (status.ok()) return CheckServer();
  if (fence_ != nullptr) TC_RETURN_IF_ERROR(fence_->Check(call_));
  // This process cancelled nothing, so the server did: it ends, and another try may find its successor.
  if (status.error_code() == grpc::StatusCode::CANCELLED && !context_.cancellation.IsCancelled()) {
    return absl::UnavailableError(absl::StrCat("the server at ", call_.peer(), " cancelled the call (",
                                               status.error_message(), "); call again"));
  }
  // gRPC says so of a service that the server does not have, without a word.
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
    return absl::UnimplementedError(
        absl::StrCat("the server at ", call_.peer(),
                     " does not have this call; if the address is that of a global store, give a daemon's "
                     "address, otherwise upgrade the server"));
  }
  // gRPC's own text, when no answer came in time, names neither the server nor a remedy.
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
      status.error_message() == "Deadline Exceeded") {
    return absl::DeadlineExceededError(
        absl::StrCat("the server at ", call_.peer(),
                     " did not answer before the deadline; give a longer timeout, or check whether the "
                     "server is stuck"));
  }
  return FromGrpcStatus(status);
}

void ClientCall::AnnounceMessages(size_t count) {
  call_.AddMetadata(kStreamMessagesKey, std::to_string(count));
}

namespace {

// The error that ended the tries, with what the first of them said: that is the cause, and those after it
// often say only that a connection broke or the time is up. An answer is an answer, and stays as it is.
absl::Status WithFirst(const absl::Status& last, const Attempt& attempt, const absl::Status& first) {
  const bool answer = !absl::IsUnavailable(last) && !absl::IsDeadlineExceeded(last);
  if (first.ok() || answer || attempt.final || first.message() == last.message()) return last;
  absl::Status both(last.code(), absl::StrCat(last.message(), " (try ", attempt.number,
                                              "; try 1 failed with: ", first.message(), ")"));
  last.ForEachPayload(
      [&both](std::string_view type, const absl::Cord& payload) { both.SetPayload(type, payload); });
  return both;
}

}  // namespace

absl::Status RetryUnavailable(const RequestContext& context, const CallOptions& options,
                              absl::FunctionRef<absl::Status(Attempt&)> work) {
  const SteadyTime give_up = std::min(context.deadline, SteadyNow() + options.retry_for);
  Backoff backoff(options.backoff);
  Attempt attempt;
  absl::Status first;  // OK until a try has failed
  while (true) {
    absl::Status status = context.Check(options.what);
    if (status.ok()) status = work(attempt);
    // `final`: the work itself knows that another try would be wrong, a stream of which something was passed
    // on already, for example.
    if (attempt.final || !IsWorthRetrying(status)) return WithFirst(status, attempt, first);
    if (first.ok()) first = status;
    const absl::Duration wait = WaitAfter(status, backoff);
    if (SteadyNow() + wait >= give_up) return WithFirst(status, attempt, first);
    if (absl::Status slept = SleepFor(context, wait, options.what); !slept.ok()) {
      return WithFirst(slept, attempt, first);
    }
    attempt = {.number = attempt.number + 1, .previous = std::move(status)};
  }
}

}  // namespace tensorcast::rpc
