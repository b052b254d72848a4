#include "rpc/handlers.h"

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "otel/api/span.h"
#include "rpc/protocol_version.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {

struct Finisher::State {
  explicit State(std::function<void(absl::Status)> f) : finish(std::move(f)) {}
  // The last copy went without an answer, an error of the handler: the caller must not wait until its
  // deadline.
  ~State() {
    Finish(
        absl::InternalError("run a call: the server dropped the call without an answer; report this defect "
                            "with the log of the server"));
  }

  // The first call counts: of the handler, a cancellation, or the destructor of the last copy.
  void Finish(absl::Status status) {
    if (!finished.exchange(true)) std::exchange(finish, nullptr)(std::move(status));
  }

  std::function<void(absl::Status)> finish;
  std::atomic<bool> finished{false};
};

Finisher::Finisher(std::function<void(absl::Status)> finish)
    : state_(std::make_shared<State>(std::move(finish))) {}

void Finisher::Finish(absl::Status status) const { state_->Finish(std::move(status)); }

namespace internal {
namespace {

// Of all streams that this process receives at the moment.
std::atomic<uint64_t> bytes_together{0};

}  // namespace

StreamCounter::StreamCounter(const grpc::CallbackServerContext& call, const StreamBounds& bounds)
    : bounds_(bounds) {
  auto it = call.client_metadata().find(kStreamMessagesKey);
  uint64_t count = 0;
  if (it != call.client_metadata().end() &&
      absl::SimpleAtoi(std::string_view(it->second.data(), it->second.size()), &count)) {
    announced_ = count;
  }
}

StreamCounter::~StreamCounter() { bytes_together.fetch_sub(bytes_); }

absl::Status StreamCounter::Count(uint64_t message_bytes) {
  ++messages_;
  bytes_ += message_bytes;
  const uint64_t together = bytes_together.fetch_add(message_bytes) + message_bytes;
  if (messages_ > bounds_.max_messages || bytes_ > bounds_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "receive a stream: the stream has ", messages_, " messages (at most ", bounds_.max_messages, ") and ",
        bytes_, " bytes (at most ", bounds_.max_bytes, "); send less in one call"));
  }
  if (together > bounds_.max_bytes_together) {
    // A refused stream takes no room from the others.
    bytes_together.fetch_sub(message_bytes);
    bytes_ -= message_bytes;
    return absl::UnavailableError(absl::StrCat("receive a stream: all running streams together have ",
                                               together, " bytes (at most ", bounds_.max_bytes_together,
                                               "); try again when some streams have ended"));
  }
  return absl::OkStatus();
}

// The end of a stream that broke off looks like that of a complete one. The number that its client
// announced tells them apart.
absl::Status StreamCounter::CheckComplete(const grpc::CallbackServerContext& call) const {
  if (announced_.has_value() && messages_ < *announced_) {
    return absl::CancelledError(absl::StrCat("receive a stream: the stream broke off after ", messages_,
                                             " of ", *announced_, " messages; send the stream again"));
  }
  if (call.IsCancelled()) return absl::CancelledError("receive a stream: the client cancelled the stream");
  return absl::OkStatus();
}

// The version first: what a peer of another version means by its call is not known.
grpc::Status CheckCaller(const grpc::CallbackServerContext& call) {
  if (const absl::Status version = CheckCallersVersion(call); !version.ok()) return ToGrpcStatus(version);
  const auto filed = CallContexts::ForServer().Find(static_cast<const grpc::ServerContextBase*>(&call));
  return filed.has_value() ? ToGrpcStatus(filed->refused) : grpc::Status::OK;
}

void RunOn(TaskRunner& executor, const RequestContext& context, std::function<void()> task,
           std::function<void(absl::Status)> fail) {
  // Shared, since the executor drops a task that it refuses, and `fail` is wanted then.
  auto shared_fail = std::make_shared<std::function<void(absl::Status)>>(std::move(fail));
  absl::Status scheduled = executor.Schedule([context, task = std::move(task), shared_fail] {
    const otel::Scope scope(context);  // what is logged below names the call's span
    // It may have waited for long; a caller that has gone needs no work done.
    absl::Status wanted = context.Check("wait for a thread of the server");
    if (wanted.ok()) {
      task();
    } else {
      (*shared_fail)(std::move(wanted));
    }
  });
  if (!scheduled.ok()) (*shared_fail)(std::move(scheduled));
}

}  // namespace internal

namespace {

// gRPC makes one per call and deletes it by OnDone, after Finish and after OnCancel has returned. The handler
// runs on the executor, OnCancel on a gRPC thread, at the same time: the context's cancellation is what they
// share.
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  UnaryReactor(grpc::CallbackServerContext* call, TaskRunner& executor,
               std::function<void(const RequestContext&, Finisher)> handler)
      : context_(ServerCallContext(call)) {
    if (const grpc::Status refused = internal::CheckCaller(*call); !refused.ok()) {
      Finish(refused);
      return;
    }
    // The task owns its copy of the context: after Finish this object may be gone while the handler still
    // returns.
    internal::RunOn(
        executor, context_,
        [this, context = context_, handler = std::move(handler)] {
          handler(context, Finisher([this](const absl::Status& status) { Finish(ToGrpcStatus(status)); }));
        },
        [this](const absl::Status& status) { Finish(ToGrpcStatus(status)); });
  }

  void OnCancel() override { context_.cancellation.Cancel(); }
  void OnDone() override { delete this; }

 private:
  const RequestContext context_;
};

}  // namespace

grpc::ServerUnaryReactor* HandleUnary(grpc::CallbackServerContext* call, TaskRunner& executor,
                                      std::function<absl::Status(const RequestContext&)> handler) {
  return HandleUnaryAsync(call, executor,
                          [handler = std::move(handler)](const RequestContext& context, Finisher finisher) {
                            finisher.Finish(handler(context));
                          });
}

grpc::ServerUnaryReactor* HandleUnaryAsync(grpc::CallbackServerContext* call, TaskRunner& executor,
                                           std::function<void(const RequestContext&, Finisher)> handler) {
  return new UnaryReactor(call, executor, std::move(handler));
}

}  // namespace tensorcast::rpc
