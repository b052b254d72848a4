// The interceptors on both ends of every call: they carry the RequestContext across as metadata. Installed by
// MakeChannel and Server. The spans and metrics of calls are made here too (call_observer.h), so that
// handlers and call sites stay free of both.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rpc/epoch.h"

namespace grpc::experimental {
class ClientInterceptorFactoryInterface;
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace tensorcast::rpc {

class AccessControl;

// Adds traceparent, tracestate and tc-request-id of the call's filed RequestContext, where one is filed, and
// tc-session-id, where there is a session. `server`: where the channel goes, for the calls' spans; a socket
// of this host is a path, and is not told.
std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface> MakeClientInterceptorFactory(
    std::string session_id, const std::string& server);

// Files a RequestContext made of the call's metadata and deadline: in the caller's trace or, when the
// caller sent none that is well-formed, a new root. The span names the ids that the request names, and a call
// that fails is a line in the log (call_observer.h).
//
// `access` decides which caller may make a call, and must outlive the last call; null: every call may be
// made. `epoch` is said with each answer, unless its number is 0. `on_admitted` is told by which connection
// each call came that was let in; empty: nothing is.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeServerInterceptorFactory(
    AccessControl* access, const Epoch& epoch, std::function<void(std::string_view peer)> on_admitted);

}  // namespace tensorcast::rpc
