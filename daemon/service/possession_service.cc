#include "daemon/service/possession_service.h"

#include "base/status.h"
#include "rpc/handlers.h"

namespace tensorcast::daemon {

grpc::ServerUnaryReactor* PossessionService::Prove(grpc::CallbackServerContext* call,
                                                   const v1::ProveRequest* request,
                                                   v1::ProveResponse* response) {
  rpc::Executor& executor = request->has_origin() ? waiting_ : quick_;
  return rpc::HandleUnary(call, executor, [this, request, response](const RequestContext&) -> absl::Status {
    TC_ASSIGN_OR_RETURN(*response->mutable_digest(), possession_.Prove(*request));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* PossessionService::DigestAgain(grpc::CallbackServerContext* call,
                                                         const v1::DigestAgainRequest* request,
                                                         v1::DigestAgainResponse* response) {
  return rpc::HandleUnary(
      call, waiting_, [this, request, response](const RequestContext& context) -> absl::Status {
        TC_ASSIGN_OR_RETURN(const bool matches, possession_.DigestAgain(context, request->replica_id()));
        response->set_matches(matches);
        return absl::OkStatus();
      });
}

}  // namespace tensorcast::daemon
