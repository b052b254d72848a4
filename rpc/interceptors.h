// The interceptors on both ends of every call: they carry the RequestContext across as metadata. Installed by
// MakeChannel and Server. The spans and metrics of calls are made here too (call_observer.h), so that
// handlers and call sites stay free of both.
#pragma once

#include <memory>

namespace grpc::experimental {
class ClientInterceptorFactoryInterface;
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace tensorcast::rpc {

// Adds traceparent, tracestate and tc-request-id of the call's filed RequestContext; nothing when none is
// filed.
std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface> MakeClientInterceptorFactory();

// Files a RequestContext made of the call's metadata and deadline: in the caller's trace or, when the
// caller sent none that is well-formed, a new root.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeServerInterceptorFactory();

}  // namespace tensorcast::rpc
