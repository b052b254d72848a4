// Turns a service's methods into plain functions (handlers). A handler gets the call's RequestContext,
// returns a status, and may block, because it runs on an Executor.
//
//   grpc::ServerUnaryReactor* BindKey(grpc::CallbackServerContext* call, const BindKeyRequest* request,
//                                     BindKeyResponse* response) override {
//     return rpc::HandleUnary(call, executor_, [this, request, response](const RequestContext& context) {
//       return DoBindKey(context, *request, *response);
//     });
//   }
//
// Request and response live until the handler has returned; in the asynchronous forms, until Finish. The
// context's cancellation fires when the client cancels or disconnects, or at the deadline. Cancellation
// callbacks run on a gRPC thread and must not block. If the client is gone before the handler starts, the
// handler does not run. A full Executor ends the call with UNAVAILABLE.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "rpc/executor.h"
#include "rpc/reactors.h"
#include "rpc/stream_writer.h"

namespace tensorcast::rpc {

// One request, one response.
grpc::ServerUnaryReactor* HandleUnary(grpc::CallbackServerContext* call, TaskRunner& executor,
                                      std::function<absl::Status(const RequestContext&)> handler);

// Like HandleUnary, but the Finisher ends the call. A call that waits needs no thread.
grpc::ServerUnaryReactor* HandleUnaryAsync(grpc::CallbackServerContext* call, TaskRunner& executor,
                                           std::function<void(const RequestContext&, Finisher)> handler);

// A stream of requests, one response. `on_message` runs on a gRPC thread for each message in turn and must
// not block. An error of `on_message` ends the call. `on_end` runs on the executor after the whole stream has
// arrived.
template <class Request>
grpc::ServerReadReactor<Request>* HandleReadStream(grpc::CallbackServerContext* call, TaskRunner& executor,
                                                   std::function<absl::Status(Request&&)> on_message,
                                                   std::function<absl::Status(const RequestContext&)> on_end,
                                                   const StreamBounds& bounds = {}) {
  return new internal::ReadStreamReactor<Request>(call, executor, std::move(on_message), std::move(on_end),
                                                  bounds);
}

// One request, a stream of responses, which the Finisher ends. The handler may keep the writer after the end
// of the call; the writer is then closed.
template <class Response>
grpc::ServerWriteReactor<Response>* HandleWriteStreamAsync(
    grpc::CallbackServerContext* call, TaskRunner& executor,
    std::function<void(const RequestContext&, std::shared_ptr<StreamWriter<Response>>, Finisher)> handler) {
  return new internal::WriteStreamReactor<Response>(call, executor, std::move(handler));
}

// One request, a stream of responses. The stream ends with the status that the handler returns.
template <class Response>
grpc::ServerWriteReactor<Response>* HandleWriteStream(
    grpc::CallbackServerContext* call, TaskRunner& executor,
    std::function<absl::Status(const RequestContext&, StreamWriter<Response>&)> handler) {
  return HandleWriteStreamAsync<Response>(call, executor,
                                          internal::FinishingWith<Response>(std::move(handler)));
}

// A stream of requests, then a stream of responses: `on_end` runs after all requests were read.
template <class Request, class Response>
grpc::ServerBidiReactor<Request, Response>* HandleBidiStream(
    grpc::CallbackServerContext* call, TaskRunner& executor,
    std::function<absl::Status(Request&&)> on_message,
    std::function<absl::Status(const RequestContext&, StreamWriter<Response>&)> on_end,
    const StreamBounds& bounds = {}) {
  return new internal::BidiStreamReactor<Request, Response>(
      call, executor, std::move(on_message), internal::FinishingWith<Response>(std::move(on_end)), bounds);
}

}  // namespace tensorcast::rpc
