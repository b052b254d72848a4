// Blocking helpers to call a service. The call gets the RequestContext's deadline and cancellation. The
// context's trace and request id travel as metadata.
//
//   TC_ASSIGN_OR_RETURN(v1::BindKeyResponse response,
//                       rpc::CallUnary(*stub, &v1::GlobalStore::Stub::BindKey, context, request));
//
// The helpers retry only UNAVAILABLE, with jittered backoff, within the limits of the options and the
// deadline. Mutations may be retried, because every attempt carries the same request id. A stream is not
// retried after its first response. Thread-safe.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "otel/api/span.h"
#include "rpc/epoch.h"
#include "rpc/retry.h"

namespace tensorcast::rpc {

struct CallOptions {
  // How long UNAVAILABLE is retried, within the context's deadline; zero: not at all.
  absl::Duration retry_for = absl::Seconds(10);
  // The pause between attempts. Short, so that a call soon finds a restarted server.
  Backoff::Options backoff = {.max = absl::Milliseconds(200)};
  const char* what = "call";    // names the work in errors of these helpers
  std::string on_behalf_of;     // for a forwarded call: the caller's name (Caller::asking); else empty
  EpochFence* fence = nullptr;  // checks the epoch of answers; must outlive the call
};

// One attempt of work that is repeated while it returns UNAVAILABLE.
struct Attempt {
  int number = 1;
  absl::Status previous;  // the error of the previous attempt
  bool final = false;     // the work sets it to forbid another attempt
};

// Records on `span` that this attempt is not the first, and why.
void NoteRetry(otel::Span& span, const Attempt& attempt);

// The gRPC context of one attempt, for calls that the helpers below do not cover. `context` must outlive the
// ClientCall.
class ClientCall {
 public:
  explicit ClientCall(const RequestContext& context, const Attempt& attempt = {},
                      const CallOptions& options = {});
  ~ClientCall();
  ClientCall(const ClientCall&) = delete;
  ClientCall& operator=(const ClientCall&) = delete;

  grpc::ClientContext* get() { return &call_; }
  // Tells the server the number of messages in this client's stream.
  void AnnounceMessages(size_t count);
  // OK if the server's responses may be used. FAILED_PRECONDITION if the server has another protocol
  // version, UNAVAILABLE if the fence refuses its epoch. REQUIRES: the first response was read.
  absl::Status CheckServer() const;
  // The result of an ended call: the call's error, or the error of CheckServer. If this process did not
  // cancel the call, CANCELLED becomes UNAVAILABLE. Any error from a server with a refused epoch becomes
  // UNAVAILABLE.
  absl::Status Outcome(const grpc::Status& status) const;

 private:
  const RequestContext& context_;
  EpochFence* const fence_;
  grpc::ClientContext call_;
  Cancellation::Registration cancel_;
};

// Repeats `work` while it returns UNAVAILABLE, within `options` and the deadline. If no attempt gets an
// answer, the last error includes the first error.
absl::Status RetryUnavailable(const RequestContext& context, const CallOptions& options,
                              absl::FunctionRef<absl::Status(Attempt&)> work);

template <class Stub, class Class, class Request, class Response>
absl::StatusOr<Response> CallUnary(
    Stub& stub, grpc::Status (Class::*method)(grpc::ClientContext*, const Request&, Response*),
    const RequestContext& context, const std::type_identity_t<Request>& request,
    const CallOptions& options = {}) {
  std::optional<Response> response;
  absl::Status status = RetryUnavailable(context, options, [&](const Attempt& attempt) {
    ClientCall call(context, attempt, options);
    return call.Outcome((stub.*method)(call.get(), request, &response.emplace()));
  });
  if (!status.ok()) return status;
  return *std::move(response);
}

// A callback type for which callers can pass lambdas.
template <class Signature>
using Callback = std::type_identity_t<absl::FunctionRef<Signature>>;

namespace internal {

// Reads responses to the end of the stream; returns the call's status, or the consumer's error.
template <class Response, class Stream>
absl::Status ReadAll(Stream& stream, ClientCall& call,
                     absl::FunctionRef<absl::Status(Response&&)> on_response, Attempt& attempt) {
  absl::Status consumed;
  Response response;
  while (consumed.ok() && stream.Read(&response)) {
    if (!attempt.final) consumed = call.CheckServer();
    attempt.final = true;
    if (consumed.ok()) consumed = on_response(std::move(response));
    response.Clear();
  }
  if (!consumed.ok()) call.get()->TryCancel();
  absl::Status status = call.Outcome(stream.Finish());
  return consumed.ok() ? status : consumed;
}

// Writes all messages. Stops early if the server ended the call; the call's status has the reason.
template <class Request, class Stream>
void WriteAll(Stream& stream, size_t count, absl::FunctionRef<Request(size_t)> make_request) {
  for (size_t i = 0; i < count; ++i) {
    if (!stream.Write(make_request(i))) return;
  }
  stream.WritesDone();
}

}  // namespace internal

// One request, a stream of responses. Calls `on_response` for each response, on this thread. An error of
// `on_response` cancels the call and is returned.
template <class Stub, class Class, class Request, class Response>
absl::Status CallServerStream(
    Stub& stub,
    std::unique_ptr<grpc::ClientReader<Response>> (Class::*method)(grpc::ClientContext*, const Request&),
    const RequestContext& context, const std::type_identity_t<Request>& request,
    Callback<absl::Status(Response&&)> on_response, const CallOptions& options = {}) {
  return RetryUnavailable(context, options, [&](Attempt& attempt) {
    ClientCall call(context, attempt, options);
    auto stream = (stub.*method)(call.get(), request);
    return internal::ReadAll<Response>(*stream, call, on_response, attempt);
  });
}

// A stream of `count` requests, one response. `make_request(i)` makes the i-th request; a retry calls it
// again.
template <class Stub, class Class, class Request, class Response>
absl::StatusOr<Response> CallClientStream(
    Stub& stub,
    std::unique_ptr<grpc::ClientWriter<Request>> (Class::*method)(grpc::ClientContext*, Response*),
    const RequestContext& context, size_t count, Callback<Request(size_t)> make_request,
    const CallOptions& options = {}) {
  std::optional<Response> response;
  absl::Status status = RetryUnavailable(context, options, [&](const Attempt& attempt) {
    ClientCall call(context, attempt, options);
    call.AnnounceMessages(count);
    auto stream = (stub.*method)(call.get(), &response.emplace());
    internal::WriteAll<Request>(*stream, count, make_request);
    return call.Outcome(stream->Finish());
  });
  if (!status.ok()) return status;
  return *std::move(response);
}

// A stream of `count` requests, then a stream of responses.
template <class Stub, class Class, class Request, class Response>
absl::Status CallBidiStream(
    Stub& stub,
    std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> (Class::*method)(grpc::ClientContext*),
    const RequestContext& context, size_t count, Callback<Request(size_t)> make_request,
    Callback<absl::Status(Response&&)> on_response, const CallOptions& options = {}) {
  return RetryUnavailable(context, options, [&](Attempt& attempt) {
    ClientCall call(context, attempt, options);
    call.AnnounceMessages(count);
    auto stream = (stub.*method)(call.get());
    internal::WriteAll<Request>(*stream, count, make_request);
    return internal::ReadAll<Response>(*stream, call, on_response, attempt);
  });
}

}  // namespace tensorcast::rpc
