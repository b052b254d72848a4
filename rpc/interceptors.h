// The interceptors of clients and servers. They pass the RequestContext as metadata, and make the spans and
// metrics of calls (call_observer.h). MakeChannel and Server install them. Thread-safe.
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

// Sends traceparent, tracestate and tc-request-id of the call's stored RequestContext, if there is one, and
// tc-session-id, if there is a session. `server`: the channel's server, for the calls' spans; a unix socket
// path is left out.
std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface> MakeClientInterceptorFactory(
    std::string session_id, const std::string& server);

// Makes a RequestContext from the call's metadata and deadline, and stores the context (call_contexts.h). If
// the caller sent no well-formed trace, the context gets a new root.
//
// `access` decides which caller may make a call, and must outlive the last call; null: every call is allowed.
// `epoch` is sent with each answer, unless its number is 0. `on_admitted` is called with the peer of each
// admitted call; may be empty.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeServerInterceptorFactory(
    AccessControl* access, const Epoch& epoch, std::function<void(std::string_view peer)> on_admitted);

}  // namespace tensorcast::rpc
