#include "rpc/call_observer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"
#include "rpc/failure_log.h"
#include "rpc/request_attributes.h"

namespace tensorcast::rpc {
namespace {

namespace attr = otel::attr;
namespace metrics = otel::metrics;

constexpr int kCancelledCode = 1;

// Health checks, reflection and heartbeats come by the clock, not by anybody's request: metrics suffice.
bool DeservesSpan(const MethodName& name) {
  return !name.service.starts_with("grpc.") && name.method != "Heartbeat";
}

// Every attempt at a call has spans of its own; those after the first say so.
void NoteAttempt(otel::Span& span, CallSide side, std::string_view attempt) {
  int number = 0;
  if (!span.recording() || !absl::SimpleAtoi(attempt, &number)) return;
  span.SetAttribute(attr::kAttempt, number);
  if (side == CallSide::kServer) return;
  span.AddEvent("retry",
                {{attr::kAttempt, number}, {attr::kReason, "UNAVAILABLE"}});  // nothing else is retried
}

std::string_view SideName(CallSide side) { return side == CallSide::kServer ? "server" : "client"; }

}  // namespace

MethodName ParseMethod(std::string_view path) {
  if (path.starts_with('/')) path.remove_prefix(1);
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return {.service = path, .method = "", .label = path};
  MethodName name{.service = path.substr(0, slash), .method = path.substr(slash + 1), .label = path};
  if (const size_t dot = name.service.rfind('.'); dot != std::string_view::npos) {
    name.label.remove_prefix(dot + 1);
  }
  return name;
}

CallObserver::~CallObserver() { End(kCancelledCode, "the call ended without a status"); }

void CallObserver::Start(CallSide side, const char* method, std::string_view attempt,
                         std::string_view session, RequestContext* context) {
  call_.emplace(Call{.side = side, .name = ParseMethod(method), .start = SteadyNow(), .span = {}});
  metrics::kRpcInFlight.Add(1, {SideName(side), call_->name.label});
  if (!DeservesSpan(call_->name)) return;
  const otel::SpanKind kind = side == CallSide::kServer ? otel::SpanKind::kServer : otel::SpanKind::kClient;
  call_->span = otel::Span(call_->name.label, *context,
                           {{attr::kRpcSystem, "grpc"},
                            {attr::kRpcService, call_->name.service},
                            {attr::kRpcMethod, call_->name.method}},
                           {.kind = kind});
  if (!context->request_id.empty()) call_->span.SetAttribute(attr::kRequestId, context->request_id);
  if (!session.empty()) call_->span.SetAttribute(attr::kSessionId, session);
  NoteAttempt(call_->span, side, attempt);
  call_->span.AttachTo(context);
}

void CallObserver::SetIds(const google::protobuf::Message& request) {
  if (!std::exchange(call_->named, true)) SetRequestAttributes(request, call_->span);
}

void CallObserver::Finish(int code, const std::string& message) {
  const absl::Status status(static_cast<absl::StatusCode>(code), message);
  call_->span.SetAttribute(attr::kRpcGrpcStatusCode, code);
  // What the caller did wrong is no error of the server.
  if (call_->side == CallSide::kClient || IsServersFault(status.code())) call_->span.SetError(status);
  call_->span.End();

  const std::string_view side = SideName(call_->side);
  const std::string code_name = absl::StatusCodeToString(status.code());
  metrics::kRpcInFlight.Add(-1, {side, call_->name.label});
  metrics::kRpcRequests.Add(1, {side, call_->name.label, code_name});
  if (!status.ok()) metrics::kRpcErrors.Add(1, {side, call_->name.label, code_name});
  metrics::kRpcDurationSeconds.Record(absl::ToDoubleSeconds(SteadyNow() - call_->start),
                                      {side, call_->name.label});
  call_.reset();
}

}  // namespace tensorcast::rpc
