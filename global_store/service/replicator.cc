#include "global_store/service/replicator.h"

#include <grpcpp/channel.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/synchronization/blocking_counter.h"
#include "base/status.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

// The id of the replica that the daemon made.
absl::StatusOr<std::string> Ask(const RequestContext& context, const std::string& artifact_id,
                                const v1::Location& location, const std::string& address,
                                const std::shared_ptr<const rpc::Credentials>& credentials) {
  auto stub = v1::StoreDaemon::NewStub(rpc::MakeChannel(
      address, {.credentials = credentials, .servers = security::Only(security::Role::kNode)}));
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(artifact_id);
  *request.mutable_location() = location;
  std::string replica_id;
  TC_RETURN_IF_ERROR(rpc::CallServerStream(*stub, &v1::StoreDaemon::Stub::MaterializeReplica, context,
                                           request, [&](v1::MaterializeReplicaResponse&& response) {
                                             if (response.has_result()) {
                                               replica_id = response.result().replica().replica_id();
                                             }
                                             return absl::OkStatus();
                                           }));
  if (replica_id.empty()) return absl::InternalError("the daemon ended the stream without a result");
  return replica_id;
}

}  // namespace

absl::Status Replicator::Materialize(const RequestContext& context, const std::string& artifact_id,
                                     const v1::Location& location, const std::string& address) {
  return Ask(context, artifact_id, location, address, credentials_).status();
}

v1::ReplicateArtifactResponse Replicator::Replicate(const RequestContext& context,
                                                    const std::string& artifact_id,
                                                    std::vector<Target> targets) {
  v1::ReplicateArtifactResponse response;
  absl::BlockingCounter running(static_cast<int>(targets.size()));
  for (const Target& target : targets) {
    v1::ReplicateArtifactResponse::Result* result =
        response.add_results();  // stays where it is when more are added
    result->set_node_id(target.node_id);
    *result->mutable_location() = target.location;
    const absl::Status scheduled =
        executor_.Schedule([this, &context, &artifact_id, &target, result, &running] {
          const absl::StatusOr<std::string> made =
              target.error.ok()
                  ? Ask(context.Child(), artifact_id, target.location, target.address, credentials_)
                  : target.error;
          if (made.ok()) {
            result->set_replica_id(*made);
          } else {
            *result->mutable_error() = rpc::ToProto(made.status());
          }
          running.DecrementCount();
        });
    if (scheduled.ok()) continue;
    *result->mutable_error() = rpc::ToProto(scheduled);
    running.DecrementCount();
  }
  running.Wait();
  return response;
}

}  // namespace tensorcast::global_store
