// Conversions between core's values and the contract's messages (proto/types.proto). Received messages are
// checked: INVALID_ARGUMENT names an invalid value. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/artifact/origin.h"
#include "core/replica/replica.h"
#include "proto/daemon.pb.h"
#include "proto/types.pb.h"

namespace tensorcast::rpc {

// In both directions, times are clamped to the years 1 to 9999.
google::protobuf::Timestamp ToProto(absl::Time time);
// At most 100 years; infinity becomes 100 years.
google::protobuf::Duration ToProto(absl::Duration duration);
absl::Time FromProto(const google::protobuf::Timestamp& time);
absl::Duration FromProto(const google::protobuf::Duration& duration);

// Does not set the device's UUID, because a Location has no UUID.
v1::Location ToProto(const Location& location);
// An unset kind means CPU.
absl::StatusOr<Location> FromProto(const v1::Location& location);

v1::ReplicaState ToProto(ReplicaState state);
absl::StatusOr<ReplicaState> FromProto(v1::ReplicaState state);

// `ready_since` is not sent.
v1::Replica ToProto(const ReplicaInfo& replica);
absl::StatusOr<ReplicaInfo> FromProto(const v1::Replica& replica);

// All fields are converted; their meaning is in core/artifact/origin.h.
v1::Origin ToProto(const Origin& origin);
Origin FromProto(const v1::Origin& origin);

// The first sixteen payloads become details under their type URLs. Bytes of the message that are not UTF-8
// become question marks, and an unknown code becomes UNKNOWN.
v1::Status ToProto(const absl::Status& status);
absl::Status FromProto(const v1::Status& status);

}  // namespace tensorcast::rpc
