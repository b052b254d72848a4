#include "rpc/handlers.h"

#include <memory>
#include <string_view>
#include <utility>

#include "otel/api/span.h"
#include "rpc/protocol_version.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {
namespace internal {

grpc::Status CheckCaller(const grpc::CallbackServerContext& call) {
  return ToGrpcStatus(CheckCallersVersion(call));
}

void RunOn(Executor& executor, const RequestContext& context, std::function<void()> task,
           std::function<void(absl::Status)> fail) {
  // Shared, since the executor drops a task that it refuses, and `fail` is wanted then.
  auto shared_fail = std::make_shared<std::function<void(absl::Status)>>(std::move(fail));
  absl::Status scheduled = executor.Schedule([context, task = std::move(task), shared_fail] {
    const otel::Scope scope(context);  // what is logged below names the call's span
    absl::Status wanted = context.Check("a request that waited for a thread");
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

class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  UnaryReactor(grpc::CallbackServerContext* call, Executor& executor,
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

grpc::ServerUnaryReactor* HandleUnary(grpc::CallbackServerContext* call, Executor& executor,
                                      std::function<absl::Status(const RequestContext&)> handler) {
  return HandleUnaryAsync(call, executor,
                          [handler = std::move(handler)](const RequestContext& context, Finisher finisher) {
                            finisher.Finish(handler(context));
                          });
}

grpc::ServerUnaryReactor* HandleUnaryAsync(grpc::CallbackServerContext* call, Executor& executor,
                                           std::function<void(const RequestContext&, Finisher)> handler) {
  return new UnaryReactor(call, executor, std::move(handler));
}

}  // namespace tensorcast::rpc
