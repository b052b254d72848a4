#include "daemon/service/versions_proxy.h"

#include <utility>

#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "proto/versions.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/call_contexts.h"
#include "rpc/handlers.h"

namespace tensorcast::daemon {
namespace {

using Stub = v1::Versions::Stub;

class VersionsProxy final : public v1::Versions::CallbackService {
 public:
  VersionsProxy(std::shared_ptr<GlobalStoreChannel> channel, GlobalStoreClient* client, rpc::Executor* quick,
                rpc::Executor* waiting)
      : channel_(std::move(channel)), client_(*client), quick_(*quick), waiting_(*waiting) {}

  using Call = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* FollowKey(Call* call, const v1::FollowKeyRequest* request,
                   v1::FollowKeyResponse* response) override {
    return Forward(call, quick_, &Stub::FollowKey, request, response);
  }
  Unary* ListFollowers(Call* call, const v1::ListFollowersRequest* request,
                       v1::ListFollowersResponse* response) override {
    return Forward(call, quick_, &Stub::ListFollowers, request, response);
  }
  Unary* UnfollowKey(Call* call, const v1::UnfollowKeyRequest* request,
                     v1::UnfollowKeyResponse* response) override {
    return Forward(call, quick_, &Stub::UnfollowKey, request, response);
  }
  // It waits for other members, so that a deadline which passes says nothing of the global store.
  Unary* AgreeOnVersion(Call* call, const v1::AgreeOnVersionRequest* request,
                        v1::AgreeOnVersionResponse* response) override {
    return Forward(call, waiting_, &Stub::AgreeOnVersion, request, response, Timeout::kMeansNothing);
  }

 private:
  template <class Request, class Response>
  Unary* Forward(Call* call, rpc::Executor& executor,
                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const Request* request, Response* response, Timeout timeout = Timeout::kMeansSilence) {
    return rpc::HandleUnary(
        call, executor,
        [this, method, request, response, timeout,
         // A client retries what is UNAVAILABLE. The global store is told which client asked.
         options =
             rpc::CallOptions{.retry_for = absl::ZeroDuration(),
                              .what = "call the global store",
                              .on_behalf_of = rpc::CallerOf(*call).asking,
                              .fence = &client_.fence()}](const RequestContext& context) -> absl::Status {
          const SteadyTime asked = SteadyNow();
          absl::StatusOr<Response> answer =
              rpc::CallUnary(*channel_->versions_stub(), method, context, *request, options);
          TC_RETURN_IF_ERROR(client_.Noted(answer.status(), asked, timeout));
          *response = *std::move(answer);
          return absl::OkStatus();
        });
  }

  const std::shared_ptr<GlobalStoreChannel> channel_;
  GlobalStoreClient& client_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeVersionsProxy(std::shared_ptr<GlobalStoreChannel> channel,
                                                 GlobalStoreClient* client, rpc::Executor* quick,
                                                 rpc::Executor* waiting) {
  return std::make_unique<VersionsProxy>(std::move(channel), client, quick, waiting);
}

}  // namespace tensorcast::daemon
