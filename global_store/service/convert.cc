#include "global_store/service/convert.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "global_store/service/node_check.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

v1::ReplicationTaskState StateOf(TaskProgress progress) {
  switch (progress) {
    case TaskProgress::kWaiting:
      return v1::REPLICATION_TASK_STATE_WAITING;
    case TaskProgress::kRunning:
      return v1::REPLICATION_TASK_STATE_RUNNING;
    case TaskProgress::kDone:
      return v1::REPLICATION_TASK_STATE_DONE;
    case TaskProgress::kFailed:
      return v1::REPLICATION_TASK_STATE_FAILED;
  }
  return v1::REPLICATION_TASK_STATE_UNSPECIFIED;
}

}  // namespace

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
                  .device_lanes = {node.device_lanes().begin(), node.device_lanes().end()},
                  .devices = {},
                  .labels = {node.labels().begin(), node.labels().end()},
                  .protocol_version = node.protocol_version(),
                  .broadcasts = {.nccl_version = ExplanationOf(node.nccl_version()),
                                 .why_not = ExplanationOf(node.no_nccl())},
                  .unhealthy_devices = {node.unhealthy_devices().begin(), node.unhealthy_devices().end()}};
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
                   .evictions = pool.evictions(),
                   .partial_replicas = pool.partial_replicas(),
                   .partial_bytes = pool.partial_bytes()});
  }
  return all;
}

// A replica that names no location or no state is left out, as the directory leaves out invalid ones: the
// others are not refused because of it.
std::vector<ReplicaInfo> FromProto(const google::protobuf::RepeatedPtrField<v1::Replica>& replicas) {
  std::vector<ReplicaInfo> all;
  for (const v1::Replica& replica : replicas) {
    absl::StatusOr<ReplicaInfo> info = rpc::FromProto(replica);
    if (info.ok()) all.push_back(*std::move(info));
  }
  return all;
}

GroupRoot FromProto(const v1::JoinBroadcastRequest::Root& root) {
  return {.communicator_id = root.communicator_id(),
          .rank = root.rank(),
          .node_name = root.node_name(),
          .replica_id = root.replica_id(),
          .traceparent = root.traceparent()};
}

// Reports are kept and shown, and a node may write what it likes: the details of an error are dropped, and
// its text is cut.
std::vector<TaskReport> FromProto(
    const google::protobuf::RepeatedPtrField<v1::ReplicationTaskReport>& reports) {
  constexpr size_t kMaxErrorBytes = 1000;
  std::vector<TaskReport> all;
  for (const v1::ReplicationTaskReport& report : reports) {
    TaskReport& one = all.emplace_back(TaskReport{.task_id = report.task_id(),
                                                  .bytes = report.bytes(),
                                                  .bytes_total = report.bytes_total(),
                                                  .ended = {}});
    if (!report.ended()) continue;
    const absl::Status error = rpc::FromProto(report.error());
    one.ended = absl::Status(error.code(), error.message().substr(0, kMaxErrorBytes));
  }
  return all;
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
  for (const std::string& lane : node.facts.device_lanes) message.add_device_lanes(lane);
  for (const DeviceFacts& device : node.facts.devices) {
    v1::Device* added = message.add_devices();
    added->set_ordinal(device.ordinal);
    added->set_uuid(device.uuid);
    added->set_name(device.name);
    added->set_total_bytes(device.total_bytes);
  }
  message.mutable_labels()->insert(node.facts.labels.begin(), node.facts.labels.end());
  message.set_protocol_version(node.facts.protocol_version);
  message.set_nccl_version(node.facts.broadcasts.nccl_version);
  message.set_no_nccl(node.facts.broadcasts.why_not);
  for (const int device : node.facts.unhealthy_devices) message.add_unhealthy_devices(device);
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
    added->set_partial_replicas(pool.partial_replicas);
    added->set_partial_bytes(pool.partial_bytes);
  }
  *message.mutable_since_heartbeat() = rpc::ToProto(node.since_heartbeat);
  return message;
}

v1::ReplicationTask ToProto(const TaskView& task) {
  const TaskRecord& record = task.record;
  v1::ReplicationTask message;
  message.set_task_id(record.task_id);
  message.set_artifact_id(record.artifact_id);
  message.set_node_id(record.node_id);
  message.set_node_name(record.node_name);
  *message.mutable_location() = rpc::ToProto(record.location);
  message.set_state(StateOf(task.progress));
  if (!record.error.ok()) *message.mutable_error() = rpc::ToProto(record.error);
  message.set_waiting_for(task.waiting_for);
  message.set_bytes(task.bytes);
  message.set_bytes_total(task.bytes_total);
  message.set_failures(record.failures);
  *message.mutable_created() = rpc::ToProto(record.created);
  // A task that is not open was last changed when it ended.
  if (record.state != TaskState::kOpen) *message.mutable_ended() = rpc::ToProto(record.updated);
  message.set_asked_by(record.asked_by);
  message.set_traceparent(record.traceparent);
  return message;
}

v1::BroadcastGroup ToProto(const NodeGroup& group) {
  v1::BroadcastGroup message;
  message.set_group_id(group.group_id);
  message.set_artifact_id(group.artifact_id);
  message.set_world_size(group.world_size);
  for (const NodeGroup::Rank& rank : group.ranks) {
    v1::BroadcastGroup::Rank* added = message.add_ranks();
    added->set_rank(rank.rank);
    *added->mutable_location() = rpc::ToProto(rank.location);
  }
  message.set_has_root(group.has_root);
  *message.mutable_forming() = rpc::ToProto(group.forming);
  return message;
}

v1::JoinBroadcastRequest::Root ToProto(const GroupRoot& root) {
  v1::JoinBroadcastRequest::Root message;
  message.set_communicator_id(root.communicator_id);
  message.set_rank(root.rank);
  message.set_node_name(root.node_name);
  message.set_replica_id(root.replica_id);
  message.set_traceparent(root.traceparent);
  return message;
}

v1::Artifact ToProto(const ArtifactView& artifact) {
  v1::Artifact message;
  message.set_artifact_id(artifact.record.artifact_id);
  message.set_image_bytes(artifact.record.image_bytes);
  message.set_chunk_bytes(artifact.record.chunk_bytes);
  message.set_tensor_count(artifact.record.tensor_count);
  message.set_kind(static_cast<uint32_t>(artifact.record.kind));
  *message.mutable_created() = rpc::ToProto(artifact.record.created);
  for (const std::string& key : artifact.keys) message.add_keys(key);
  for (const std::string& key : artifact.kept_by) message.add_kept_by(key);
  message.set_released(artifact.released);
  message.set_replica_count(static_cast<uint32_t>(artifact.ready_replicas));
  for (const ReplicaInfo& replica : artifact.replicas) *message.add_replicas() = rpc::ToProto(replica);
  for (const Origin& origin : artifact.record.origins) *message.add_origins() = rpc::ToProto(origin);
  for (const DifferenceEdge& edge : artifact.differences) *message.add_differences() = ToProto(edge);
  return message;
}

v1::Difference ToProto(const DifferenceEdge& edge) {
  v1::Difference message;
  message.set_artifact_id(edge.artifact_id);
  message.set_base_id(edge.base_id);
  message.set_target_id(edge.target_id);
  message.set_image_bytes(edge.image_bytes);
  return message;
}

v1::Key ToProto(const KeyRecord& key, uint32_t keep) {
  v1::Key message;
  message.set_name(key.name);
  message.set_artifact_id(key.artifact_id);
  message.set_revision(key.revision);
  *message.mutable_updated() = rpc::ToProto(key.updated);
  message.set_keep(keep);
  message.set_files_id(key.files_id);
  for (const KeyVersion& version : key.earlier) {
    v1::KeyVersion& added = *message.add_earlier();
    added.set_artifact_id(version.artifact_id);
    added.set_revision(version.revision);
    *added.mutable_bound() = rpc::ToProto(version.bound);
    added.set_files_id(version.files_id);
  }
  return message;
}

// A page is made under the directory's lock, so a caller cannot ask for all at once.
absl::StatusOr<size_t> PageSize(int32_t asked) {
  constexpr int32_t kDefault = 100;
  constexpr int32_t kLargest = 1000;
  if (asked < 0) {
    return absl::InvalidArgumentError(absl::StrCat("list a page: the page size is ", asked,
                                                   "; give a positive number, or 0 for the default"));
  }
  return static_cast<size_t>(asked == 0 ? kDefault : std::min(asked, kLargest));
}

}  // namespace tensorcast::global_store
