#include "daemon/service/live_leases_service.h"

#include "base/status.h"
#include "proto/live.grpc.pb.h"
#include "rpc/handlers.h"

namespace tensorcast::daemon {
namespace {

class LiveLeasesService final : public v1::LiveLeases::CallbackService {
 public:
  LiveLeasesService(LiveReplicas* live, rpc::Executor* quick, rpc::Executor* waiting)
      : live_(*live), quick_(*quick), waiting_(*waiting) {}

  using Call = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* AttachLive(Call* call, const v1::AttachLiveRequest* request,
                    v1::AttachLiveResponse* response) override {
    return rpc::HandleUnary(call, quick_, [this, request, response](const RequestContext&) -> absl::Status {
      TC_ASSIGN_OR_RETURN(*response, live_.Attach(*request));
      return absl::OkStatus();
    });
  }
  Unary* PrepareVersion(Call* call, const v1::PrepareVersionRequest* request,
                        v1::PrepareVersionResponse* response) override {
    return rpc::HandleUnary(call, waiting_,
                            [this, request, response](const RequestContext& context) -> absl::Status {
                              TC_ASSIGN_OR_RETURN(*response, live_.Prepare(context, *request));
                              return absl::OkStatus();
                            });
  }
  Unary* CommitVersion(Call* call, const v1::CommitVersionRequest* request,
                       v1::CommitVersionResponse* response) override {
    return rpc::HandleUnary(call, waiting_,
                            [this, request, response](const RequestContext& context) -> absl::Status {
                              TC_ASSIGN_OR_RETURN(*response, live_.Commit(context, *request));
                              return absl::OkStatus();
                            });
  }

 private:
  LiveReplicas& live_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeLiveLeasesService(LiveReplicas* live, rpc::Executor* quick,
                                                     rpc::Executor* waiting) {
  return std::make_unique<LiveLeasesService>(live, quick, waiting);
}

}  // namespace tensorcast::daemon
