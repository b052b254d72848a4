#include "daemon/service/possession_service.h"

#include "base/status.h"
#include "proto/possession.grpc.pb.h"
#include "rpc/handlers.h"

namespace tensorcast::daemon {
namespace {

// The global store's questions to this node: whether it has bytes, and whether they are still right.
class PossessionService final : public v1::Possession::CallbackService {
 public:
  PossessionService(Possession* possession, rpc::Executor* quick, rpc::Executor* waiting)
      : possession_(*possession), quick_(*quick), waiting_(*waiting) {}

  grpc::ServerUnaryReactor* Prove(grpc::CallbackServerContext* call, const v1::ProveRequest* request,
                                  v1::ProveResponse* response) override {
    // A replica of this node is read at once. Files of an import may take requests to an object store.
    rpc::Executor& executor = request->has_origin() ? waiting_ : quick_;
    return rpc::HandleUnary(call, executor, [this, request, response](const RequestContext&) -> absl::Status {
      TC_ASSIGN_OR_RETURN(*response->mutable_digest(), possession_.Prove(*request));
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* DigestAgain(grpc::CallbackServerContext* call,
                                        const v1::DigestAgainRequest* request,
                                        v1::DigestAgainResponse* response) override {
    // This reads the whole replica.
    return rpc::HandleUnary(
        call, waiting_, [this, request, response](const RequestContext& context) -> absl::Status {
          TC_ASSIGN_OR_RETURN(const bool matches, possession_.DigestAgain(context, request->replica_id()));
          response->set_matches(matches);
          return absl::OkStatus();
        });
  }

 private:
  Possession& possession_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePossessionService(Possession* possession, rpc::Executor* quick,
                                                     rpc::Executor* waiting) {
  return std::make_unique<PossessionService>(possession, quick, waiting);
}

}  // namespace tensorcast::daemon
