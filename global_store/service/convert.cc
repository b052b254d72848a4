#include "global_store/service/convert.h"

#include "base/status.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
NodeIdentity FromProto(const v1::NodeIdentity& identity) {
  return {.node_id = identity.node_id(), .incarnation = identity.incarnation()};
}

NodeFacts FromProto(const v1::Node& node) {
  NodeFacts facts{.node_id = node.node_id(),
                  .name = node.name(),
                  .incarnation = node.incarnation(),
                  .host_id = node.host_id(),
                  .grpc_address = node.grpc_address(),
                  .handle_socket = node.handle_socket(),
                  .lanes = {node.lanes().begin(), node.lanes().end()},
                  .devices = {},
                  .protocol_version = node.protocol_version()};
  for (const v1::Device& device : node.devices()) {
    facts.devices.push_back({.ordinal = device.ordinal(),
                             .uuid = device.uuid(),
                             .name = device.name(),
                             .total_bytes = device.total_bytes()});
  }
  return facts;
}

absl::StatusOr<std::vector<PoolFacts>> FromProto(const google::protobuf::RepeatedPtrField<v1::Pool>& pools) {
  std::vector<PoolFacts> all;
  for (const v1::Pool& pool : pools) {
    TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(pool.location()));
    all.push_back({.location = location,
                   .capacity_bytes = pool.capacity_bytes(),
                   .used_bytes = pool.used_bytes(),
                   .pinned_bytes = pool.pinned_bytes(),
                   .high_water_bytes = pool.high_water_bytes(),
                   .failed_allocations = pool.failed_allocations(),
                   .evictions = pool.evictions()});
  }
  return all;
}

absl::StatusOr<ReplicaFacts> FromProto(const v1::Replica& replica) {
  TC_ASSIGN_OR_RETURN(const ReplicaInfo info, rpc::FromProto(replica));
  return ReplicaFacts{.replica_id = info.id,
                      .artifact_id = info.artifact_id,
                      .node_id = replica.node_id(),
                      .location = info.location,
                      .device_uuid = replica.location().device_uuid(),
                      .state = info.state,
                      .image_bytes = info.image_bytes,
                      .chunks_total = info.chunks_total,
                      .chunks_present = info.chunks_present,
                      .leases = info.leases,
                      .pinned = info.pinned,
                      .last_used = info.last_used};
}

absl::StatusOr<Origin> FromProto(const v1::Origin& origin) {
  if (origin.files().empty()) {
    return absl::InvalidArgumentError("an origin names the files that were imported");
  }
  Origin facts{.node_id = origin.node_id(), .files = {}};
  for (const v1::Origin::File& file : origin.files()) {
    facts.files.push_back({.path = file.path(), .bytes = file.bytes(), .mtime_ns = file.mtime_ns()});
  }
  return facts;
}

void ToProto(const NodeView& node, v1::Node* out) {
  out->set_node_id(node.facts.node_id);
  out->set_name(node.facts.name);
  out->set_incarnation(node.facts.incarnation);
  out->set_host_id(node.facts.host_id);
  out->set_grpc_address(node.facts.grpc_address);
  out->set_handle_socket(node.facts.handle_socket);
  for (const std::string& lane : node.facts.lanes) out->add_lanes(lane);
  for (const DeviceFacts& device : node.facts.devices) {
    v1::Device* added = out->add_devices();
    added->set_ordinal(device.ordinal);
    added->set_uuid(device.uuid);
    added->set_name(device.name);
    added->set_total_bytes(device.total_bytes);
  }
  out->set_protocol_version(node.facts.protocol_version);
  out->set_draining(node.draining);
  out->set_unreachable(node.unreachable);
  for (const PoolFacts& pool : node.pools) {
    v1::Pool* added = out->add_pools();
    *added->mutable_location() = rpc::ToProto(pool.location);
    added->set_capacity_bytes(pool.capacity_bytes);
    added->set_used_bytes(pool.used_bytes);
    added->set_pinned_bytes(pool.pinned_bytes);
    added->set_high_water_bytes(pool.high_water_bytes);
    added->set_failed_allocations(pool.failed_allocations);
    added->set_evictions(pool.evictions);
  }
  *out->mutable_since_heartbeat() = rpc::ToProto(node.since_heartbeat);
}

void ToProto(const ReplicaFacts& replica, v1::Replica* out) {
  const ReplicaInfo info{.id = replica.replica_id,
                         .artifact_id = replica.artifact_id,
                         .location = replica.location,
                         .state = replica.state,
                         .image_bytes = replica.image_bytes,
                         .chunks_total = replica.chunks_total,
                         .chunks_present = replica.chunks_present,
                         .leases = replica.leases,
                         .pinned = replica.pinned,
                         .last_used = replica.last_used};
  *out = rpc::ToProto(info, replica.node_id);
  out->mutable_location()->set_device_uuid(replica.device_uuid);
}

void ToProto(const Origin& origin, v1::Origin* out) {
  out->set_node_id(origin.node_id);
  for (const OriginFile& file : origin.files) {
    v1::Origin::File* added = out->add_files();
    added->set_path(file.path);
    added->set_bytes(file.bytes);
    added->set_mtime_ns(file.mtime_ns);
  }
}

void ToProto(const ArtifactView& artifact, v1::Artifact* out) {
  out->set_artifact_id(artifact.record.artifact_id);
  out->set_image_bytes(artifact.record.image_bytes);
  out->set_chunk_bytes(artifact.record.chunk_bytes);
  out->set_tensor_count(artifact.record.tensor_count);
  *out->mutable_created() = rpc::ToProto(artifact.record.created);
  for (const std::string& key : artifact.keys) out->add_keys(key);
  for (const ReplicaFacts& replica : artifact.replicas) ToProto(replica, out->add_replicas());
  for (const Origin& origin : artifact.record.origins) ToProto(origin, out->add_origins());
}

void ToProto(const KeyRecord& key, v1::Key* out) {
  out->set_name(key.name);
  out->set_artifact_id(key.artifact_id);
  out->set_revision(key.revision);
  *out->mutable_updated() = rpc::ToProto(key.updated);
}

}  // namespace tensorcast::global_store
