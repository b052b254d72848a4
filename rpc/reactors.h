// The gRPC reactors behind the handlers (handlers.h), and the Finisher with which an asynchronous handler
// ends its call. Everything except Finisher and StreamBounds is internal to this folder.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "rpc/call_contexts.h"
#include "rpc/executor.h"
#include "rpc/status_mapping.h"
#include "rpc/stream_writer.h"

namespace tensorcast::rpc {

// Ends the call of an asynchronous handler, from any thread, also after the handler returned.
//
// Copies share one call. The first Finish counts; later calls of Finish do nothing. If the last copy is
// destroyed before Finish, the call ends with INTERNAL. The handler must not use the call's request and
// response after Finish. Thread-safe.
class Finisher {
 public:
  explicit Finisher(std::function<void(absl::Status)> finish);

  void Finish(absl::Status status) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The max size of a client's stream.
struct StreamBounds {
  uint64_t max_messages = uint64_t{1} << 20;
  uint64_t max_bytes = uint64_t{1} << 30;
  // The max sum over all streams that this process receives at a time; the streams need several times this
  // sum in memory.
  uint64_t max_bytes_together = uint64_t{1} << 30;
};

// A reactor owns itself: OnDone, which gRPC calls last, deletes the reactor.
namespace internal {

// Counts one stream's messages, and checks whether the whole stream arrived. The destructor releases the
// stream's part of the common limit. Thread-compatible.
class StreamCounter {
 public:
  StreamCounter(const grpc::CallbackServerContext& call, const StreamBounds& bounds);
  ~StreamCounter();
  StreamCounter(const StreamCounter&) = delete;
  StreamCounter& operator=(const StreamCounter&) = delete;

  // RESOURCE_EXHAUSTED above a limit of the stream, UNAVAILABLE above the common limit.
  absl::Status Count(uint64_t message_bytes);
  // Call this at the end of the stream. CANCELLED if the client announced more messages than arrived, or
  // cancelled the call.
  absl::Status CheckComplete(const grpc::CallbackServerContext& call) const;

 private:
  const StreamBounds bounds_;
  std::optional<uint64_t> announced_;
  uint64_t messages_ = 0;
  uint64_t bytes_ = 0;
};

// The refusal of a caller with another protocol version, or of a caller without access; OK for other callers.
grpc::Status CheckCaller(const grpc::CallbackServerContext& call);

// Runs `task` on the executor. If the context ends before `task` starts, or if the executor has no room,
// calls only `fail`, with the reason.
void RunOn(TaskRunner& executor, const RequestContext& context, std::function<void()> task,
           std::function<void(absl::Status)> fail);

// Reads a client's stream to its end for a reactor.
template <class Request>
class RequestReader {
 public:
  RequestReader(grpc::CallbackServerContext* call, std::function<absl::Status(Request&&)> on_message,
                const StreamBounds& bounds)
      : call_(call), on_message_(std::move(on_message)), counter_(*call, bounds) {}

  Request* message() { return &message_; }

  absl::Status Consume() {
    absl::Status counted = counter_.Count(message_.ByteSizeLong());
    if (!counted.ok()) return counted;
    absl::Status consumed = on_message_(std::move(message_));
    message_.Clear();
    return consumed;
  }
  absl::Status CheckComplete() const { return counter_.CheckComplete(*call_); }

 private:
  grpc::CallbackServerContext* const call_;
  const std::function<absl::Status(Request&&)> on_message_;
  StreamCounter counter_;
  Request message_;
};

template <class Request>
class ReadStreamReactor final : public grpc::ServerReadReactor<Request> {
 public:
  ReadStreamReactor(grpc::CallbackServerContext* call, TaskRunner& executor,
                    std::function<absl::Status(Request&&)> on_message,
                    std::function<absl::Status(const RequestContext&)> on_end, const StreamBounds& bounds)
      : executor_(executor),
        context_(ServerCallContext(call)),
        reader_(call, std::move(on_message), bounds),
        on_end_(std::move(on_end)) {
    if (const grpc::Status refused = CheckCaller(*call); !refused.ok()) {
      this->Finish(refused);
      return;
    }
    this->StartRead(reader_.message());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    if (absl::Status consumed = reader_.Consume(); !consumed.ok()) {
      return this->Finish(ToGrpcStatus(consumed));
    }
    this->StartRead(reader_.message());
  }
  void OnCancel() override { context_.cancellation.Cancel(); }
  void OnDone() override { delete this; }

 private:
  void End() {
    RunOn(
        executor_, context_,
        [this] {
          absl::Status status = reader_.CheckComplete();
          if (status.ok()) status = on_end_(context_);
          this->Finish(ToGrpcStatus(status));
        },
        [this](absl::Status status) { this->Finish(ToGrpcStatus(status)); });
  }

  TaskRunner& executor_;
  const RequestContext context_;
  RequestReader<Request> reader_;
  const std::function<absl::Status(const RequestContext&)> on_end_;
};

template <class Response>
using StreamHandler =
    std::function<void(const RequestContext&, std::shared_ptr<StreamWriter<Response>>, Finisher)>;

// Turns a handler that returns its status into a handler that ends the call by itself.
template <class Response>
StreamHandler<Response> FinishingWith(
    std::function<absl::Status(const RequestContext&, StreamWriter<Response>&)> handler) {
  return [handler = std::move(handler)](const RequestContext& context,
                                        std::shared_ptr<StreamWriter<Response>> writer,
                                        Finisher finisher) { finisher.Finish(handler(context, *writer)); };
}

// A task that runs the handler and owns all its arguments. After Finish the reactor may be destroyed while
// the handler still runs.
template <class Response>
std::function<void()> Answer(RequestContext context, std::shared_ptr<StreamWriter<Response>> writer,
                             StreamHandler<Response> handler) {
  return [context = std::move(context), writer = std::move(writer), handler = std::move(handler)] {
    handler(context, writer, Finisher([writer](const absl::Status& status) { writer->Finish(status); }));
  };
}

// The common part of reactors that write a stream. `Reactor` is gRPC's class.
template <class Reactor, class Response>
class WritingReactor : public Reactor, public StreamSink<Response> {
 public:
  void OnWriteDone(bool ok) final { writer_->OnWritten(ok); }
  void OnCancel() final {
    writer_->Close();
    context_.cancellation.Cancel();
  }
  void OnDone() final {
    writer_->Close();
    delete this;
  }

 protected:
  explicit WritingReactor(grpc::CallbackServerContext* call)
      : context_(ServerCallContext(call)),
        writer_(std::make_shared<StreamWriter<Response>>(this, context_)) {}

  // Finishes the call of a caller that must not reach a handler.
  bool Refuses(const grpc::CallbackServerContext& call) {
    const grpc::Status refused = CheckCaller(call);
    if (!refused.ok()) this->Finish(refused);
    return !refused.ok();
  }
  void Run(TaskRunner& executor, std::function<void()> answer) {
    RunOn(executor, context_, std::move(answer),
          [writer = writer_](const absl::Status& status) { writer->Finish(status); });
  }

  const RequestContext context_;
  const std::shared_ptr<StreamWriter<Response>> writer_;

 private:
  void SinkWrite(const Response* message) final { this->StartWrite(message); }
  void SinkFinish(const grpc::Status& status) final { this->Finish(status); }
};

template <class Response>
class WriteStreamReactor final : public WritingReactor<grpc::ServerWriteReactor<Response>, Response> {
 public:
  WriteStreamReactor(grpc::CallbackServerContext* call, TaskRunner& executor, StreamHandler<Response> handler)
      : WriteStreamReactor::WritingReactor(call) {
    if (!this->Refuses(*call)) this->Run(executor, Answer(this->context_, this->writer_, std::move(handler)));
  }
};

template <class Request, class Response>
class BidiStreamReactor final : public WritingReactor<grpc::ServerBidiReactor<Request, Response>, Response> {
 public:
  BidiStreamReactor(grpc::CallbackServerContext* call, TaskRunner& executor,
                    std::function<absl::Status(Request&&)> on_message, StreamHandler<Response> on_end,
                    const StreamBounds& bounds)
      : BidiStreamReactor::WritingReactor(call),
        executor_(executor),
        reader_(call, std::move(on_message), bounds),
        on_end_(std::move(on_end)) {
    if (!this->Refuses(*call)) this->StartRead(reader_.message());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    if (absl::Status consumed = reader_.Consume(); !consumed.ok()) return this->writer_->Finish(consumed);
    this->StartRead(reader_.message());
  }

 private:
  void End() {
    this->Run(executor_, [this, answer = Answer(this->context_, this->writer_, std::move(on_end_))] {
      absl::Status complete = reader_.CheckComplete();
      if (!complete.ok()) return this->writer_->Finish(complete);
      answer();
    });
  }

  TaskRunner& executor_;
  RequestReader<Request> reader_;
  StreamHandler<Response> on_end_;
};

}  // namespace internal

}  // namespace tensorcast::rpc
