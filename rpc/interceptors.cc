#include "rpc/interceptors.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/client_interceptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "rpc/call_contexts.h"
#include "rpc/call_observer.h"

namespace tensorcast::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

class ClientInterceptor final : public grpc::experimental::Interceptor {
 public:
  ClientInterceptor(const void* call, const char* method) : call_(call), method_(method) {}

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
    std::optional<RequestContext> context = CallContexts::ForClient().Find(call_);
    if (!context.has_value()) return;
    const auto attempt = metadata.find(kAttemptKey);
    observer_.Begin(CallSide::kClient, method_, attempt == metadata.end() ? "" : attempt->second, &*context);
    if (context->trace.IsValid()) {
      metadata.emplace(kTraceparentKey, context->trace.ToTraceparent());
      if (!context->trace.trace_state.empty()) metadata.emplace(kTracestateKey, context->trace.trace_state);
    }
    if (!context->request_id.empty()) metadata.emplace(kRequestIdKey, context->request_id);
  }

  const void* const call_;
  const char* const method_;
  CallObserver observer_;
};

class ClientInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo* info) override {
    return new ClientInterceptor(info->client_context(), info->method());
  }
};

using ReceivedMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;

std::string_view ValueOf(const ReceivedMetadata& metadata, const char* key) {
  auto it = metadata.find(key);
  return it == metadata.end() ? std::string_view() : std::string_view(it->second.data(), it->second.size());
}

bool IsRequestId(std::string_view text) {
  return text.size() <= kMaxRequestIdBytes && std::all_of(text.begin(), text.end(), absl::ascii_isgraph);
}

class ServerInterceptor final : public grpc::experimental::Interceptor {
 public:
  ServerInterceptor(grpc::ServerContextBase* call, const char* method) : call_(call), method_(method) {}
  // gRPC destroys its interceptors with the call's context object, so an address is never filed twice at a
  // time.
  ~ServerInterceptor() override { CallContexts::ForServer().Remove(call_); }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      File(*methods->GetRecvInitialMetadata());
    }
    if (observer_.observing() &&
        methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      observer_.End(status.error_code(), status.error_message());
    }
    methods->Proceed();
  }

 private:
  void File(const ReceivedMetadata& metadata) {
    RequestContext context;
    context.deadline = ServerCallDeadline(*call_);
    const auto caller = otel::TraceContext::FromTraceparent(ValueOf(metadata, kTraceparentKey),
                                                            ValueOf(metadata, kTracestateKey));
    // As it came: where no span is made here, what this call causes is the caller's span's child.
    context.trace = caller.has_value() ? *caller : otel::TraceContext::NewRoot();
    const std::string_view request_id = ValueOf(metadata, kRequestIdKey);
    if (IsRequestId(request_id)) context.request_id = std::string(request_id);
    observer_.Begin(CallSide::kServer, method_, ValueOf(metadata, kAttemptKey), &context);
    CallContexts::ForServer().File(call_, std::move(context));
  }

  grpc::ServerContextBase* const call_;
  const char* const method_;
  CallObserver observer_;
};

class ServerInterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new ServerInterceptor(info->server_context(), info->method());
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface> MakeClientInterceptorFactory() {
  return std::make_unique<ClientInterceptorFactory>();
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeServerInterceptorFactory() {
  return std::make_unique<ServerInterceptorFactory>();
}

}  // namespace tensorcast::rpc
