#include "tools/workshop/chaos/liar.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/channel.h"
#include "rpc/protocol_version.h"
#include "rpc/server.h"

namespace tensorcast::chaos {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kHeartbeatInterval = absl::Milliseconds(100);

RequestContext LiarContext() { return RequestContext::Background(kCallTimeout); }

v1::Replica Claimed(std::string id, const v1::Artifact& artifact) {
  v1::Replica replica;
  replica.set_replica_id(std::move(id));
  replica.set_artifact_id(artifact.artifact_id());
  replica.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  replica.set_state(v1::REPLICA_STATE_READY);
  replica.set_image_bytes(artifact.image_bytes());
  return replica;
}

}  // namespace

// Of a store daemon what other nodes call of a source: it has nothing, and says so in a terminal's language.
class Liar::Service final : public v1::StoreDaemon::Service {
 public:
  explicit Service(Liar* liar) : liar_(*liar) {}

  grpc::Status OpenPull(grpc::ServerContext*, const v1::OpenPullRequest*, v1::OpenPullResponse*) override {
    ++liar_.asked_;
    return {grpc::StatusCode::UNAVAILABLE, "\x1B[2J\x1B]0;forged\x07 node-0 is corrupt"};
  }
  grpc::Status AttachReplica(grpc::ServerContext*, const v1::AttachReplicaRequest*,
                             v1::AttachReplicaResponse* response) override {
    ++liar_.asked_;
    if (liar_.options_.ticket == nullptr) return {grpc::StatusCode::UNAVAILABLE, "\x1B[2J"};
    response->set_handle_socket(liar_.options_.handle_socket);
    response->set_ticket(liar_.options_.ticket());
    response->mutable_replica()->set_state(v1::REPLICA_STATE_READY);
    return grpc::Status::OK;
  }
  grpc::Status CheckOrigin(grpc::ServerContext*, const v1::CheckOriginRequest*,
                           v1::CheckOriginResponse* response) override {
    response->set_intact(true);
    return grpc::Status::OK;
  }

 private:
  Liar& liar_;
};

Liar::Liar(const LiarOptions& options) : options_(options), service_(std::make_unique<Service>(this)) {
  store_ = daemon::MakeGlobalStoreClient(std::make_shared<daemon::GlobalStoreChannel>(
      options.global_store, rpc::ChannelOptions{.credentials = options.credentials}));
}

Liar::~Liar() = default;

absl::StatusOr<std::unique_ptr<Liar>> Liar::Start(const LiarOptions& options) {
  std::unique_ptr<Liar> liar(new Liar(options));
  TC_ASSIGN_OR_RETURN(liar->server_, rpc::Server::Start({.listen = {options.listen},
                                                         .services = {liar->service_.get()},
                                                         .credentials = options.credentials}));
  v1::Node& node = liar->node_;
  node.set_node_id(absl::StrCat("id-of-", options.name));
  node.set_name(options.name);
  node.set_incarnation(1);
  node.set_host_id(options.host_id);
  node.set_handle_socket(options.handle_socket);
  node.set_protocol_version(rpc::kProtocolVersion);
  node.set_grpc_address(liar->server_->addresses().front());
  node.add_lanes("tcp");
  TC_RETURN_IF_ERROR(liar->Register([](v1::Node&) {}));
  // A store that was started anew knows it no more; one that is away comes back.
  liar->heartbeats_ = TaskLoop::Every(kHeartbeatInterval, [it = liar.get()] {
    v1::HeartbeatRequest request;
    *request.mutable_node() = it->identity();
    request.set_inventory_sequence(it->sequence_);
    const absl::Status beat = it->store_->Heartbeat(LiarContext(), request).status();
    if (absl::IsNotFound(beat)) it->Register([](v1::Node&) {}).IgnoreError();
  });
  return liar;
}

v1::NodeIdentity Liar::identity() const {
  v1::NodeIdentity identity;
  identity.set_node_id(node_.node_id());
  identity.set_incarnation(node_.incarnation());
  return identity;
}

absl::Status Liar::Register(const std::function<void(v1::Node&)>& change) {
  v1::RegisterNodeRequest request;
  *request.mutable_node() = node_;
  change(*request.mutable_node());
  return store_->RegisterNode(LiarContext(), request).status();
}

absl::Status Liar::Claim(const std::vector<v1::Artifact>& artifacts) {
  v1::ReconcileInventoryRequest inventory;
  *inventory.mutable_node() = identity();
  inventory.set_sequence(++sequence_);
  for (const v1::Artifact& artifact : artifacts) {
    *inventory.add_replicas() = Claimed(absl::StrCat("lie-", artifact.artifact_id()), artifact);
    for (const v1::Replica& replica : artifact.replicas()) {
      *inventory.add_replicas() = Claimed(replica.replica_id(), artifact);
    }
  }
  return store_->ReconcileInventory(LiarContext(), {inventory}).status();
}

absl::Status Liar::Accuse(const std::vector<v1::Artifact>& artifacts, bool with_grants) {
  for (const v1::Artifact& artifact : artifacts) {
    v1::RequestReplicaTransportRequest request;
    *request.mutable_node() = identity();
    request.set_artifact_id(artifact.artifact_id());
    request.mutable_destination()->set_kind(v1::LOCATION_KIND_CPU);
    for (const v1::Replica& replica : artifact.replicas()) {
      // Both forms in which a request may name a replica: the id alone, and the id after its node's.
      request.add_corrupt_replicas(replica.replica_id());
      request.add_corrupt_replicas(absl::StrCat(replica.node_id(), "/", replica.replica_id()));
      // An excluded replica is not granted, so the accusation comes without a grant.
      if (!with_grants) request.add_excluded_replicas(replica.replica_id());
    }
    RequestContext call = LiarContext();
    call.request_id = NewUuid();
    TC_ASSIGN_OR_RETURN(const auto response, store_->RequestReplicaTransport(call, request));
    for (const v1::TransportGrant& grant : response.grants()) {
      v1::CompleteReplicaTransportRequest complete;
      *complete.mutable_node() = identity();
      complete.set_grant_id(grant.grant_id());
      complete.set_outcome(v1::TRANSPORT_OUTCOME_FAILED);
      complete.set_source_corrupt(with_grants);
      TC_RETURN_IF_ERROR(store_->CompleteReplicaTransport(LiarContext(), complete));
    }
  }
  return absl::OkStatus();
}

}  // namespace tensorcast::chaos
