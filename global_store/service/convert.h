// Conversions between the directory's values and the protobuf contract; rpc/convert converts the values
// of core. Private to this folder. Errors: INVALID_ARGUMENT for a message with a missing or invalid field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "global_store/directory/listings.h"
#include "global_store/tasks/task.h"
#include "proto/global_store.pb.h"

namespace tensorcast::global_store {

NodeIdentity FromProto(const v1::NodeIdentity& identity);
NodeFacts FromProto(const v1::Node& node);
absl::StatusOr<std::vector<PoolFacts>> FromProto(const google::protobuf::RepeatedPtrField<v1::Pool>& pools);
// Leaves out replicas without a location or state.
std::vector<ReplicaInfo> FromProto(const google::protobuf::RepeatedPtrField<v1::Replica>& replicas);
GroupRoot FromProto(const v1::JoinBroadcastRequest::Root& root);
std::vector<TaskReport> FromProto(
    const google::protobuf::RepeatedPtrField<v1::ReplicationTaskReport>& reports);

v1::Node ToProto(const NodeView& node);
v1::Artifact ToProto(const ArtifactView& artifact);
v1::Difference ToProto(const DifferenceEdge& edge);
// `keep`: the number of versions that the key keeps; 0: unknown.
v1::Key ToProto(const KeyRecord& key, uint32_t keep);
v1::ReplicationTask ToProto(const TaskView& task);
v1::BroadcastGroup ToProto(const NodeGroup& group);
v1::JoinBroadcastRequest::Root ToProto(const GroupRoot& root);

// The max bytes of entries on a page of a listing; far below rpc::kMaxMessageBytes.
inline constexpr size_t kPageBytes = size_t{1} << 20;

// The max number of entries on a page, from the requested number `asked`. If `asked` is 0, the default.
// INVALID_ARGUMENT for a negative number.
absl::StatusOr<size_t> PageSize(int32_t asked);

}  // namespace tensorcast::global_store
