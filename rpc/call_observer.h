// What a call reports to telemetry: one span and the tc_rpc_* metrics on either end, the ids that its request
// names, and a line in the server's log when it fails: handlers return their errors and leave reporting to
// this.
//
// A CallObserver is owned by an interceptor. One call's hooks run one after the other, so this needs no lock.
// With telemetry off it is a branch.
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

// "/tensorcast.v1.GlobalStore/BindKey" in its parts.
struct MethodName {
  std::string_view service;  // "tensorcast.v1.GlobalStore"
  std::string_view method;   // "BindKey"
  std::string_view label;    // "GlobalStore/BindKey": the span's name and the metrics' label
};
MethodName ParseMethod(std::string_view path);

class CallObserver {
 public:
  CallObserver() = default;
  // A call that never got a status was cancelled.
  ~CallObserver();

  // `method`, as gRPC has it, outlives this. The span is a child of the context's trace and takes its place.
  // `attempt`: in words, as the metadata has it; empty for the first.
  // `session`: the client's, as the metadata has it; empty: none.
  void Begin(CallSide side, const char* method, std::string_view attempt, std::string_view session,
             RequestContext* context) {
    if (otel::IsTracing() || otel::IsMeasuring()) [[unlikely]]
      Start(side, method, attempt, session, context);
  }
  // Which server a client's call goes to.
  void SetServer(std::string_view host, int port) {
    if (!call_.has_value()) return;
    call_->span.SetAttribute(otel::attr::kServerAddress, host);
    call_->span.SetAttribute(otel::attr::kServerPort, port);
  }
  // The first message of the request, for the ids that it names.
  void Name(const google::protobuf::Message& request) {
    if (call_.has_value() && call_->span.recording()) [[unlikely]]
      SetIds(request);
  }
  // `code`: a gRPC status code. Later ends count for nothing.
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

// The ids that a request names, as attributes of the span of its call: which artifact, key, replica, node,
// grant, location and device. Found by the fields' names, which are the same in all our messages, so that no
// handler has to say them. Fields that are empty or unset are left out. Thread-safe; what there is to look
// for is found once a type of message.
void SetRequestAttributes(const google::protobuf::Message& request, otel::Span& span);

// Whether a server's answer says that the server failed, rather than that the caller asked for what cannot
// be: then its span is an error, too. After OpenTelemetry's conventions for gRPC.
bool IsServersFault(absl::StatusCode code);

// `method`: "GlobalStore/BindKey". A call that its caller cancelled did not fail. Text that came from outside
// cannot make lines of its own, and a flood of failures is cut to some lines a second, with their number; the
// server's faults are counted apart from what callers asked for in vain.
void LogFailedCall(std::string_view method, const RequestContext& context, const absl::Status& status);

}  // namespace tensorcast::rpc
