#include "global_store/service/materialize.h"

#include <grpcpp/channel.h>

#include "base/status.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"

namespace tensorcast::global_store {

absl::Status AskToMaterialize(const RequestContext& context, const std::string& artifact_id,
                              const v1::Location& location, const std::string& address,
                              const std::shared_ptr<const rpc::Credentials>& credentials) {
  auto stub = v1::StoreDaemon::NewStub(rpc::MakeChannel(
      address, {.credentials = credentials, .servers = security::Only(security::Role::kNode)}));
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(artifact_id);
  *request.mutable_location() = location;
  // The stream has progress first. A daemon that dies in the middle ends it without a result.
  bool made = false;
  TC_RETURN_IF_ERROR(rpc::CallServerStream(*stub, &v1::StoreDaemon::Stub::MaterializeReplica, context,
                                           request, [&](v1::MaterializeReplicaResponse&& response) {
                                             made = made || response.has_result();
                                             return absl::OkStatus();
                                           }));
  return made ? absl::OkStatus() : absl::InternalError("the daemon ended the stream without a result");
}

}  // namespace tensorcast::global_store
