#include "global_store/service/convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "global_store/service/node_check.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

// clang-format off
#define TC_NODE_FIELDS(X) \
  X(node_id, node_id) X(name, name) X(incarnation, incarnation) X(host_id, host_id) \
  X(grpc_address, grpc_address) X(handle_socket, handle_socket) X(protocol_version, protocol_version)
#define TC_DEVICE_FIELDS(X) X(ordinal, ordinal) X(uuid, uuid) X(name, name) X(total_bytes, total_bytes)
#define TC_POOL_FIELDS(X) \
  X(capacity_bytes, capacity_bytes) X(used_bytes, used_bytes) X(pinned_bytes, pinned_bytes) \
  X(high_water_bytes, high_water_bytes) X(failed_allocations, failed_allocations) X(evictions, evictions) \
  X(partial_replicas, partial_replicas) X(partial_bytes, partial_bytes)
#define TC_ROOT_FIELDS(X) \
  X(communicator_id, communicator_id) X(rank, rank) X(node_name, node_name) X(replica_id, replica_id) \
  X(traceparent, traceparent)
// clang-format on

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

DeviceFacts FromProto(const v1::Device& message) {
  DeviceFacts value;
  TC_DEVICE_FIELDS(TC_GET_FIELD)
  return value;
}

v1::Device ToProto(const DeviceFacts& value) {
  v1::Device message;
  TC_DEVICE_FIELDS(TC_SET_FIELD)
  return message;
}

v1::Pool ToProto(const PoolFacts& value) {
  v1::Pool message;
  TC_POOL_FIELDS(TC_SET_FIELD)
  *message.mutable_location() = rpc::ToProto(value.location);
  return message;
}

}  // namespace

NodeIdentity FromProto(const v1::NodeIdentity& identity) {
  return {.node_id = identity.node_id(), .incarnation = identity.incarnation()};
}

NodeFacts FromProto(const v1::Node& message) {
  NodeFacts value{
      .lanes = {message.lanes().begin(), message.lanes().end()},
      .device_lanes = {message.device_lanes().begin(), message.device_lanes().end()},
      .labels = {message.labels().begin(), message.labels().end()},
      .broadcasts = {.nccl_version = ExplanationOf(message.nccl_version()),
                     .why_not = ExplanationOf(message.no_nccl())},
      .unhealthy_devices = {message.unhealthy_devices().begin(), message.unhealthy_devices().end()}};
  TC_NODE_FIELDS(TC_GET_FIELD)
  for (const v1::Device& device : message.devices()) value.devices.push_back(FromProto(device));
  return value;
}

absl::StatusOr<std::vector<PoolFacts>> FromProto(const google::protobuf::RepeatedPtrField<v1::Pool>& pools) {
  std::vector<PoolFacts> all;
  for (const v1::Pool& message : pools) {
    PoolFacts& value = all.emplace_back();
    TC_POOL_FIELDS(TC_GET_FIELD)
    TC_ASSIGN_OR_RETURN(value.location, rpc::FromProto(message.location()));
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

GroupRoot FromProto(const v1::JoinBroadcastRequest::Root& message) {
  GroupRoot value;
  TC_ROOT_FIELDS(TC_GET_FIELD)
  return value;
}

// They are kept, and a node may say what it likes: the details go, and what is too long.
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
  const NodeFacts& value = node.facts;
  v1::Node message;
  TC_NODE_FIELDS(TC_SET_FIELD)
  message.mutable_lanes()->Assign(value.lanes.begin(), value.lanes.end());
  message.mutable_device_lanes()->Assign(value.device_lanes.begin(), value.device_lanes.end());
  for (const DeviceFacts& device : value.devices) *message.add_devices() = ToProto(device);
  message.mutable_labels()->insert(value.labels.begin(), value.labels.end());
  message.set_nccl_version(value.broadcasts.nccl_version);
  message.set_no_nccl(value.broadcasts.why_not);
  message.mutable_unhealthy_devices()->Assign(value.unhealthy_devices.begin(), value.unhealthy_devices.end());
  message.set_draining(node.draining);
  message.set_unreachable(node.unreachable);
  for (const PoolFacts& pool : node.pools) *message.add_pools() = ToProto(pool);
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

v1::JoinBroadcastRequest::Root ToProto(const GroupRoot& value) {
  v1::JoinBroadcastRequest::Root message;
  TC_ROOT_FIELDS(TC_SET_FIELD)
  return message;
}

v1::Artifact ToProto(const ArtifactView& artifact) {
  v1::Artifact message;
  message.set_artifact_id(artifact.record.artifact_id);
  message.set_image_bytes(artifact.record.image_bytes);
  message.set_chunk_bytes(artifact.record.chunk_bytes);
  message.set_tensor_count(artifact.record.tensor_count);
  *message.mutable_created() = rpc::ToProto(artifact.record.created);
  message.mutable_keys()->Assign(artifact.keys.begin(), artifact.keys.end());
  message.mutable_kept_by()->Assign(artifact.kept_by.begin(), artifact.kept_by.end());
  message.set_released(artifact.released);
  message.set_replica_count(static_cast<uint32_t>(artifact.ready_replicas));
  for (const ReplicaInfo& replica : artifact.replicas) *message.add_replicas() = rpc::ToProto(replica);
  for (const Origin& origin : artifact.record.origins) *message.add_origins() = rpc::ToProto(origin);
  return message;
}

v1::Key ToProto(const KeyRecord& key, uint32_t keep) {
  v1::Key message;
  message.set_name(key.name);
  message.set_artifact_id(key.artifact_id);
  message.set_revision(key.revision);
  *message.mutable_updated() = rpc::ToProto(key.updated);
  message.set_keep(keep);
  for (const KeyVersion& version : key.earlier) {
    v1::KeyVersion& added = *message.add_earlier();
    added.set_artifact_id(version.artifact_id);
    added.set_revision(version.revision);
    *added.mutable_bound() = rpc::ToProto(version.bound);
  }
  return message;
}

// A page is made under the directory's lock, so a caller cannot ask for all at once.
absl::StatusOr<size_t> PageSize(int32_t asked) {
  constexpr int32_t kDefault = 100;
  constexpr int32_t kLargest = 1000;
  if (asked < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("list a page: the page size is ", asked, "; give a positive one, or 0 for the default"));
  }
  return static_cast<size_t>(asked == 0 ? kDefault : std::min(asked, kLargest));
}

}  // namespace tensorcast::global_store
