#include "global_store/service/convert.h"

#include <algorithm>
#include <utility>

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

absl::StatusOr<std::vector<ReplicaInfo>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::Replica>& replicas) {
  std::vector<ReplicaInfo> all;
  for (const v1::Replica& replica : replicas) {
    TC_ASSIGN_OR_RETURN(ReplicaInfo info, rpc::FromProto(replica));
    all.push_back(std::move(info));
  }
  return all;
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

v1::Node ToProto(const NodeView& node) {
  v1::Node message;
  message.set_node_id(node.facts.node_id);
  message.set_name(node.facts.name);
  message.set_incarnation(node.facts.incarnation);
  message.set_host_id(node.facts.host_id);
  message.set_grpc_address(node.facts.grpc_address);
  message.set_handle_socket(node.facts.handle_socket);
  for (const std::string& lane : node.facts.lanes) message.add_lanes(lane);
  for (const DeviceFacts& device : node.facts.devices) {
    v1::Device* added = message.add_devices();
    added->set_ordinal(device.ordinal);
    added->set_uuid(device.uuid);
    added->set_name(device.name);
    added->set_total_bytes(device.total_bytes);
  }
  message.set_protocol_version(node.facts.protocol_version);
  message.set_draining(node.draining);
  message.set_unreachable(node.unreachable);
  for (const PoolFacts& pool : node.pools) {
    v1::Pool* added = message.add_pools();
    *added->mutable_location() = rpc::ToProto(pool.location);
    added->set_capacity_bytes(pool.capacity_bytes);
    added->set_used_bytes(pool.used_bytes);
    added->set_pinned_bytes(pool.pinned_bytes);
    added->set_high_water_bytes(pool.high_water_bytes);
    added->set_failed_allocations(pool.failed_allocations);
    added->set_evictions(pool.evictions);
  }
  *message.mutable_since_heartbeat() = rpc::ToProto(node.since_heartbeat);
  return message;
}

v1::Origin ToProto(const Origin& origin) {
  v1::Origin message;
  message.set_node_id(origin.node_id);
  for (const OriginFile& file : origin.files) {
    v1::Origin::File* added = message.add_files();
    added->set_path(file.path);
    added->set_bytes(file.bytes);
    added->set_mtime_ns(file.mtime_ns);
  }
  return message;
}

v1::Artifact ToProto(const ArtifactView& artifact) {
  v1::Artifact message;
  message.set_artifact_id(artifact.record.artifact_id);
  message.set_image_bytes(artifact.record.image_bytes);
  message.set_chunk_bytes(artifact.record.chunk_bytes);
  message.set_tensor_count(artifact.record.tensor_count);
  *message.mutable_created() = rpc::ToProto(artifact.record.created);
  for (const std::string& key : artifact.keys) message.add_keys(key);
  for (const ReplicaInfo& replica : artifact.replicas) *message.add_replicas() = rpc::ToProto(replica);
  for (const Origin& origin : artifact.record.origins) *message.add_origins() = ToProto(origin);
  return message;
}

v1::Key ToProto(const KeyRecord& key) {
  v1::Key message;
  message.set_name(key.name);
  message.set_artifact_id(key.artifact_id);
  message.set_revision(key.revision);
  *message.mutable_updated() = rpc::ToProto(key.updated);
  return message;
}

// A page is made under the directory's lock, so nobody gets to ask for all at once.
absl::StatusOr<size_t> PageSize(int32_t asked) {
  constexpr int32_t kDefault = 100;
  constexpr int32_t kLargest = 1000;
  if (asked < 0) return absl::InvalidArgumentError("a page size is not negative");
  return static_cast<size_t>(asked == 0 ? kDefault : std::min(asked, kLargest));
}

}  // namespace tensorcast::global_store
