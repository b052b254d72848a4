// The telemetry of a call: a span with the ids in the request, and the tc_rpc_* metrics. A server also logs
// failed calls.
//
// Thread-compatible: an interceptor owns a CallObserver, and the hooks of one call run one after the other.
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

  // Starts a span as a child of `context->trace`, and sets `context->trace` to the span. `method` has gRPC's
  // form and must outlive the observer. `attempt`: the number of the attempt as text; empty: the first
  // attempt. `session`: the client's session; empty: none.
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
  // `code`: a gRPC status code. Only the first End counts.
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
// and device. Finds the ids by the names of the fields. Leaves out empty fields. Thread-safe.
void SetRequestAttributes(const google::protobuf::Message& request, otel::Span& span);

// True if the code blames the server, not the caller. The server's span of such a call is an error. Follows
// OpenTelemetry's semantic conventions for gRPC (https://opentelemetry.io/docs/specs/semconv/rpc/grpc/).
bool IsServersFault(absl::StatusCode code);

// Logs one line for a failed call, unless its caller cancelled the call. `method`: for example
// "GlobalStore/BindKey". Logs at most 100 server faults and 100 caller faults per second.
void LogFailedCall(std::string_view method, const RequestContext& context, const absl::Status& status);

}  // namespace tensorcast::rpc
