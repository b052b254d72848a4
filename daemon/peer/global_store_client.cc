#include "daemon/peer/global_store_client.h"

#include <grpcpp/channel.h>

#include <utility>

#include "core/status/status.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/pieces.h"

namespace tensorcast::daemon {
namespace {

using Stub = v1::GlobalStore::Stub;

// The link and the errands have retries of their own; requests on behalf of a client ride out a short
// absence.
rpc::CallOptions Once() { return {.retry_for = absl::ZeroDuration(), .what = "call of the global store"}; }
rpc::CallOptions Patient() { return {.retry_for = absl::Seconds(5), .what = "call of the global store"}; }

template <class Response>
absl::Status Store(absl::StatusOr<Response> result, Response* out) {
  TC_RETURN_IF_ERROR(result.status());
  *out = *std::move(result);
  return absl::OkStatus();
}

class GrpcGlobalStoreClient : public GlobalStoreClient {
 public:
  explicit GrpcGlobalStoreClient(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::GlobalStore::NewStub(std::move(channel))) {}

  absl::Status RegisterNode(const RequestContext& context, const v1::RegisterNodeRequest& request,
                            v1::RegisterNodeResponse* response) override {
    return Store(rpc::CallUnary(*stub_, &Stub::RegisterNode, context, request, Once()), response);
  }

  absl::Status Heartbeat(const RequestContext& context, const v1::HeartbeatRequest& request,
                         v1::HeartbeatResponse* response) override {
    return Store(rpc::CallUnary(*stub_, &Stub::Heartbeat, context, request, Once()), response);
  }

  absl::Status ReconcileInventory(const RequestContext& context,
                                  const std::vector<v1::ReconcileInventoryRequest>& messages,
                                  v1::ReconcileInventoryResponse* response) override {
    return Store(rpc::CallClientStream(
                     *stub_, &Stub::ReconcileInventory, context, messages.size(),
                     [&](size_t index) { return messages[index]; }, Once()),
                 response);
  }

  absl::Status UpdateReplicas(const RequestContext& context, const v1::UpdateReplicasRequest& request,
                              v1::UpdateReplicasResponse* response) override {
    return Store(rpc::CallUnary(*stub_, &Stub::UpdateReplicas, context, request, Once()), response);
  }

  absl::Status RequestEviction(const RequestContext& context, const v1::RequestEvictionRequest& request,
                               v1::RequestEvictionResponse* response) override {
    return Store(rpc::CallUnary(*stub_, &Stub::RequestEviction, context, request, Once()), response);
  }

  absl::Status DrainNode(const RequestContext& context, const v1::DrainNodeRequest& request) override {
    return rpc::CallUnary(*stub_, &Stub::DrainNode, context, request, Once()).status();
  }

  absl::Status PublishArtifact(const RequestContext& context, const Manifest& manifest,
                               const v1::PublishArtifactRequest& first,
                               v1::PublishArtifactResponse* response) override {
    const std::string& bytes = manifest.bytes();
    const auto message = [&](size_t index) {
      v1::PublishArtifactRequest request;
      if (index == 0) {
        request = first;
      }
      request.set_manifest_piece(std::string(rpc::Piece(bytes, index)));
      return request;
    };
    return Store(rpc::CallClientStream(*stub_, &Stub::PublishArtifact, context, rpc::PieceCount(bytes.size()),
                                       message, Patient()),
                 response);
  }

  absl::Status FetchManifest(const RequestContext& context, std::string_view artifact_id,
                             std::string* manifest) override {
    v1::DescribeArtifactRequest request;
    request.set_artifact_id(std::string(artifact_id));
    request.set_manifest(true);
    rpc::PieceJoiner joiner;
    TC_RETURN_IF_ERROR(rpc::CallServerStream(
        *stub_, &Stub::DescribeArtifact, context, request,
        [&](v1::DescribeArtifactResponse&& response) { return joiner.Add(response.manifest_piece()); },
        Patient()));
    *manifest = joiner.Take();
    return absl::OkStatus();
  }

  absl::Status ResolveKey(const RequestContext& context, const std::string& key, v1::Key* out) override {
    v1::ResolveKeyRequest request;
    request.set_key(key);
    TC_ASSIGN_OR_RETURN(v1::ResolveKeyResponse response,
                        rpc::CallUnary(*stub_, &Stub::ResolveKey, context, request, Patient()));
    *out = std::move(*response.mutable_key());
    return absl::OkStatus();
  }

  absl::Status RequestReplicaTransport(const RequestContext& context,
                                       const v1::RequestReplicaTransportRequest& request,
                                       v1::RequestReplicaTransportResponse* response) override {
    return Store(rpc::CallUnary(*stub_, &Stub::RequestReplicaTransport, context, request, Patient()),
                 response);
  }

  absl::Status CompleteReplicaTransport(const RequestContext& context,
                                        const v1::CompleteReplicaTransportRequest& request) override {
    return rpc::CallUnary(*stub_, &Stub::CompleteReplicaTransport, context, request, Patient()).status();
  }

 private:
  const std::unique_ptr<Stub> stub_;
};

}  // namespace

std::unique_ptr<GlobalStoreClient> MakeGlobalStoreClient(std::shared_ptr<grpc::Channel> channel) {
  return std::make_unique<GrpcGlobalStoreClient>(std::move(channel));
}

}  // namespace tensorcast::daemon
