// The telemetry of a call: one span and the tc_rpc_* metrics at either end, the ids in its request, and a
// line in the server's log when it fails. Handlers only return their errors.
//
// An interceptor owns a CallObserver. The hooks of one call run one after the other, so no lock is needed.
// With telemetry off it costs a branch.
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
  // A call without a status was cancelled.
  ~CallObserver();

  // `method`, in gRPC's form, must outlive the observer. The span is a child of the context's trace and
  // replaces it. `attempt`: the text in the metadata; empty for the first. `session`: the client's, from the
  // metadata; empty: none.
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
// and device. They are found by the fields' names, which are equal in all our messages, so handlers need no
// code for them. Empty and unset fields are left out. Thread-safe; the fields are looked up once per message
// type.
void SetRequestAttributes(const google::protobuf::Message& request, otel::Span& span);

// Whether a server's status means that the server failed, rather than that the request was impossible: then
// its span is an error too. Follows OpenTelemetry's conventions for gRPC.
bool IsServersFault(absl::StatusCode code);

// `method`: "GlobalStore/BindKey". A call that its caller cancelled is not a failure. Outside text cannot add
// lines to the log. A flood of failures is limited to some lines per second, with their number; faults of the
// server are counted separately from faults of callers.
void LogFailedCall(std::string_view method, const RequestContext& context, const absl::Status& status);

}  // namespace tensorcast::rpc
