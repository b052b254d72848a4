// The telemetry of a call: on both ends, one span with the ids in the request, and the tc_rpc_* metrics; on
// the server, a log line if the call fails. So handlers only return their errors.
//
// An interceptor owns a CallObserver. The hooks of one call run one after the other, so no lock is needed.
// With telemetry off, each hook costs a branch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "otel/api/metrics.h"
#include "otel/api/span.h"
#include "otel/api/trace_sink.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace tensorcast::rpc {

enum class CallSide : uint8_t { kClient, kServer };

// Splits "/tensorcast.v1.GlobalStore/BindKey" into its parts.
struct MethodName {
  std::string_view service;  // "tensorcast.v1.GlobalStore"
  std::string_view method;   // "BindKey"
  std::string_view label;    // "GlobalStore/BindKey": the span's name and the metrics' label
};
MethodName ParseMethod(std::string_view path);

class CallObserver {
 public:
  CallObserver() = default;
  // If End was not called, the RPC counts as cancelled.
  ~CallObserver();

  // `method`, in gRPC's form, must outlive the observer. The span is a child of `context->trace` and replaces
  // it there. `attempt`: the number of the attempt as text; empty for the first. `session`: the client's
  // session; empty: none.
  void Begin(CallSide side, const char* method, std::string_view attempt, std::string_view session,
             RequestContext* context) {
    if (otel::IsTracing() || otel::IsMeasuring()) [[unlikely]]
      Start(side, method, attempt, session, context);
  }
  // Sets the server of a client's call.
  void SetServer(std::string_view host, int port) {
    if (!call_.has_value()) return;
    call_->span.SetAttribute(otel::attr::kServerAddress, host);
    call_->span.SetAttribute(otel::attr::kServerPort, port);
  }
  // Records the ids in the first message of the request.
  void Name(const google::protobuf::Message& request) {
    if (call_.has_value() && call_->span.recording()) [[unlikely]]
      SetIds(request);
  }
  // `code`: a gRPC status code. Only the first call counts.
  void End(int code, const std::string& message) {
    if (call_.has_value()) [[unlikely]]
      Finish(code, message);
  }
  bool observing() const { return call_.has_value(); }

 private:
  struct Call {
    CallSide side;
    MethodName name;
    SteadyTime start;
    otel::Span span;
    bool named = false;
  };
  void Start(CallSide side, const char* method, std::string_view attempt, std::string_view session,
             RequestContext* context);
  void SetIds(const google::protobuf::Message& request);
  void Finish(int code, const std::string& message);

  std::optional<Call> call_;
};

// Sets the ids in a request as attributes of its call's span: artifact, key, replica, node, grant, location
// and device. Finds them by the names of the fields, which are the same in all messages of proto/, so
// handlers need no code for them. Empty and unset fields are left out. Thread-safe; the fields are looked up
// once per message type.
void SetRequestAttributes(const google::protobuf::Message& request, otel::Span& span);

// Whether a status means that the server failed, not that the request was impossible. Only then is the
// server's span an error. Follows OpenTelemetry's semantic conventions for gRPC
// (https://opentelemetry.io/docs/specs/semconv/rpc/grpc/).
bool IsServersFault(absl::StatusCode code);

// Logs one line for a failed call. `method`: for example "GlobalStore/BindKey". Does not log a call that its
// caller cancelled. Text from the caller cannot add lines to the log. Writes at most 100 lines per second;
// each line says how many failures before it were not logged. Server faults and caller faults have separate
// limits.
void LogFailedCall(std::string_view method, const RequestContext& context, const absl::Status& status);

}  // namespace tensorcast::rpc
