#include "rpc/interceptors.h"

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/client_interceptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "base/address.h"
#include "rpc/access.h"
#include "rpc/call_contexts.h"
#include "rpc/call_observer.h"
#include "rpc/epoch.h"
#include "rpc/protocol_version.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

class ClientInterceptor final : public grpc::experimental::Interceptor {
 public:
  ClientInterceptor(const void* call, const char* method, const std::string& session_id,
                    const std::optional<HostPort>& server)
      : call_(call), method_(method), session_id_(session_id), server_(server) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      Inject(*methods->GetSendInitialMetadata());
    }
    if (observer_.observing() &&
        methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_STATUS)) {
      const grpc::Status& status = *methods->GetRecvStatus();
      observer_.End(status.error_code(), status.error_message());
    }
    methods->Proceed();
  }

 private:
  void Inject(std::multimap<std::string, std::string>& metadata) {
    metadata.emplace(kProtocolKey, kProtocolText);
    if (!session_id_.empty()) metadata.emplace(kSessionIdKey, session_id_);
    std::optional<CallContexts::Entry> filed = CallContexts::ForClient().Find(call_);
    if (!filed.has_value()) return;
    RequestContext& context = filed->context;
    const auto attempt = metadata.find(kAttemptKey);
    // Before the trace is written: it makes the call's span, and that one is to be the parent on the other
    // side.
    observer_.Begin(CallSide::kClient, method_, attempt == metadata.end() ? "" : attempt->second, session_id_,
                    &context);
    if (server_.has_value()) observer_.SetServer(server_->host, server_->port);
    if (context.trace.IsValid()) {
      metadata.emplace(kTraceparentKey, context.trace.ToTraceparent());
      if (!context.trace.trace_state.empty()) metadata.emplace(kTracestateKey, context.trace.trace_state);
    }
    if (!context.request_id.empty()) metadata.emplace(kRequestIdKey, context.request_id);
  }

  const void* const call_;
  const char* const method_;
  // The factory's, which the channel keeps.
  const std::string& session_id_;
  const std::optional<HostPort>& server_;
  CallObserver observer_;
};

class ClientInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  ClientInterceptorFactory(std::string session_id, const std::string& server)
      : session_id_(std::move(session_id)) {
    if (const absl::StatusOr<HostPort> one = ParseHostPort(server); one.ok()) server_ = *one;
  }
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo* info) override {
    return new ClientInterceptor(info->client_context(), info->method(), session_id_, server_);
  }

 private:
  const std::string session_id_;
  std::optional<HostPort> server_;
};

using ReceivedMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;

std::string_view ValueOf(const ReceivedMetadata& metadata, const char* key) {
  auto it = metadata.find(key);
  return it == metadata.end() ? std::string_view() : std::string_view(it->second.data(), it->second.size());
}

// They come from outside and go into logs, spans and the database: short, and without blanks or control
// characters.
bool IsId(std::string_view text) {
  return text.size() <= kMaxRequestIdBytes && std::all_of(text.begin(), text.end(), absl::ascii_isgraph);
}

using OnAdmitted = std::function<void(std::string_view peer)>;

// gRPC calls Intercept with sets of hook points. One call has, in this order: metadata received (File),
// messages received, metadata sent, status sent; and the close by the caller, at any time and perhaps on
// another thread. Proceed must be called each time, or the call hangs.
class ServerInterceptor final : public grpc::experimental::Interceptor {
 public:
  ServerInterceptor(grpc::ServerContextBase* call, const char* method, AccessControl* access,
                    const std::string& epoch, const OnAdmitted& on_admitted)
      : call_(call),
        method_(method),
        ours_(ParseMethod(method).service.starts_with("tensorcast.")),
        access_(ours_ ? access : nullptr),
        epoch_(epoch),
        on_admitted_(on_admitted) {}
  // gRPC destroys its interceptors with the call's context object, so an address is never filed twice at a
  // time.
  ~ServerInterceptor() override {
    CallContexts::ForServer().Remove(call_);
    if (access_ != nullptr) access_->Ended(call_);
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      File(*methods->GetRecvInitialMetadata());
    }
    // gRPC passes the address of the message; the types of our own services are protobuf messages first of
    // all.
    if (observer_.observing() && ours_ &&
        methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      const auto* message = static_cast<const google::protobuf::Message*>(methods->GetRecvMessage());
      if (message != nullptr) observer_.Name(*message);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() == nullptr) {
      unreadable_ = true;
    }
    if (ours_ && methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kProtocolKey, kProtocolText);
      if (!epoch_.empty()) methods->GetSendInitialMetadata()->emplace(kEpochKey, epoch_);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      ExplainUnreadable(*methods);
      AdmitAgain(*methods);
      if (!told_unreadable_.has_value()) End(methods->GetSendStatus());
    }
    // May come before the status is sent, at the same time on another thread, or after it.
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_CLOSE) &&
        reached_.exchange(Reached::kClose) == Reached::kToldUnreadable) {
      EndUnreadable();
    }
    methods->Proceed();
  }

 private:
  // For a request that it cannot parse, or of which nothing came before the caller gave up, gRPC calls no
  // handler, and answers as if there were none. Which of the two it was is known when the call is closed.
  void ExplainUnreadable(InterceptorBatchMethods& methods) {
    const grpc::Status status = methods.GetSendStatus();
    if (!unreadable_ || !ours_ || status.error_code() != grpc::StatusCode::UNIMPLEMENTED ||
        !status.error_message().empty()) {
      return;
    }
    // A peer of another version is the likelier reason for a message that cannot be read.
    const absl::Status version = CheckCallersVersion(*call_);
    told_unreadable_ = !version.ok() ? ToGrpcStatus(version)
                                     : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                                    "read the request: a key, a path or another text in it "
                                                    "is not valid UTF-8; encode all texts in UTF-8");
    methods.ModifySendStatus(*told_unreadable_);
    if (reached_.exchange(Reached::kToldUnreadable) == Reached::kClose) EndUnreadable();
  }

  void EndUnreadable() {
    if (!call_->IsCancelled()) return End(*told_unreadable_);
    if (const auto filed = CallContexts::ForServer().Find(call_); filed.has_value()) {
      filed->context.cancellation.Cancel();
    }
    End({grpc::StatusCode::CANCELLED, "the caller gave up before its request had arrived"});
  }

  // Two hooks, which may run at once on two threads. Each exchanges its own value for the other's, so the
  // second of them, and only that, ends the call.
  enum class Reached : uint8_t { kNeither, kToldUnreadable, kClose };

  // What admitted the call may have ended while its handler ran: then its answer must not be sent.
  void AdmitAgain(InterceptorBatchMethods& methods) const {
    if (access_ == nullptr) return;
    if (const absl::Status refused = access_->Admit(); !refused.ok()) {
      methods.ModifySendStatus(ToGrpcStatus(refused));
    }
  }

  void End(const grpc::Status& status) {
    observer_.End(status.error_code(), status.error_message());
    if (status.ok() || !ours_) return;
    if (const auto filed = CallContexts::ForServer().Find(call_); filed.has_value()) {
      LogFailedCall(ParseMethod(method_).label, filed->context, FromGrpcStatus(status));
    }
  }

  void File(const ReceivedMetadata& metadata) {
    CallContexts::Entry filed;
    RequestContext& context = filed.context;
    context.deadline = ServerCallDeadline(*call_);
    const auto caller =
        TraceContext::FromTraceparent(ValueOf(metadata, kTraceparentKey), ValueOf(metadata, kTracestateKey));
    // As it came: where no span is made here, what this call causes is the caller's span's child.
    context.trace = caller.has_value() ? *caller : TraceContext::NewRoot();
    const std::string_view request_id = ValueOf(metadata, kRequestIdKey);
    if (IsId(request_id)) context.request_id = std::string(request_id);
    const std::string_view session_id = ValueOf(metadata, kSessionIdKey);
    observer_.Begin(CallSide::kServer, method_, ValueOf(metadata, kAttemptKey),
                    IsId(session_id) ? session_id : "", &context);
    CheckAccess(ValueOf(metadata, kCallerKey), filed);
    if (filed.refused.ok() && on_admitted_ != nullptr) on_admitted_(call_->peer());
    CallContexts::ForServer().File(call_, std::move(filed));
  }

  // What is refused here ends before its handler (handlers.cc); an interceptor itself cannot end a call.
  void CheckAccess(std::string_view on_behalf_of, CallContexts::Entry& filed) {
    if (access_ == nullptr) return;
    AccessControl::Decision decision = access_->Decide(*call_, ParseMethod(method_).label, on_behalf_of);
    filed.caller = std::move(decision.caller);
    filed.refused = std::move(decision.refused);
    if (decision.certificate == nullptr || !filed.refused.ok()) return;
    access_->Began(call_, std::move(decision.certificate), filed.context.cancellation);
  }

  grpc::ServerContextBase* const call_;
  const char* const method_;
  // Else one of gRPC's own services (health, reflection): they need no role and carry no version.
  const bool ours_;
  AccessControl* const access_;                       // null: nothing is checked
  const std::string& epoch_;                          // the factory's; empty: there is none
  const OnAdmitted& on_admitted_;                     // the factory's; may be empty
  bool unreadable_ = false;                           // the last message that was received
  std::optional<grpc::Status> told_unreadable_;       // what the caller is told then
  std::atomic<Reached> reached_ = Reached::kNeither;  // the later of the two
  CallObserver observer_;
};

class ServerInterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  ServerInterceptorFactory(AccessControl* access, const Epoch& epoch, OnAdmitted on_admitted)
      : access_(access),
        epoch_(epoch.number != 0 ? epoch.ToText() : ""),
        on_admitted_(std::move(on_admitted)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new ServerInterceptor(info->server_context(), info->method(), access_, epoch_, on_admitted_);
  }

 private:
  AccessControl* const access_;
  const std::string epoch_;
  const OnAdmitted on_admitted_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface> MakeClientInterceptorFactory(
    std::string session_id, const std::string& server) {
  return std::make_unique<ClientInterceptorFactory>(std::move(session_id), server);
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeServerInterceptorFactory(
    AccessControl* access, const Epoch& epoch, std::function<void(std::string_view peer)> on_admitted) {
  return std::make_unique<ServerInterceptorFactory>(access, epoch, std::move(on_admitted));
}

}  // namespace tensorcast::rpc
