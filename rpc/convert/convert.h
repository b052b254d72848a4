// The core's values <-> the contract's messages (proto/types.proto). What comes from the wire is checked:
// INVALID_ARGUMENT names the value that does not exist. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/artifact/origin.h"
#include "core/replica/replica.h"
#include "core/replica/transfer_report.h"
#include "proto/daemon.pb.h"
#include "proto/types.pb.h"

namespace tensorcast::rpc {

// Times, in both directions, are within the years 1 to 9999.
google::protobuf::Timestamp ToProto(absl::Time time);
google::protobuf::Duration ToProto(
    absl::Duration duration);  // at most 100 years, which stand for forever too
absl::Time FromProto(const google::protobuf::Timestamp& time);
absl::Duration FromProto(const google::protobuf::Duration& duration);

// The device's UUID is not filled in: a location does not know it.
v1::Location ToProto(const Location& location);
// An unset kind means CPU.
absl::StatusOr<Location> FromProto(const v1::Location& location);

v1::ReplicaState ToProto(ReplicaState state);
absl::StatusOr<ReplicaState> FromProto(v1::ReplicaState state);

// `ready_since` does not travel.
v1::Replica ToProto(const ReplicaInfo& replica);
absl::StatusOr<ReplicaInfo> FromProto(const v1::Replica& replica);

// Objects are files so far: the message has the four numbers of a file's version, and no other version.
v1::Origin ToProto(const Origin& origin);
Origin FromProto(const v1::Origin& origin);

v1::Progress ToProto(const TransferProgress& progress);
// A source type that is unknown here (a newer daemon's) reads as remote.
TransferProgress FromProto(const v1::Progress& progress);

// Payloads travel as details under their type URLs, the first sixteen. Bytes of a message that are not UTF-8
// become question marks, and an unknown code becomes UNKNOWN.
v1::Status ToProto(const absl::Status& status);
absl::Status FromProto(const v1::Status& status);

v1::WallTime ToProto(const WallTime& time);
WallTime FromProto(const v1::WallTime& message);

// Of the trace only its id travels.
v1::TransferReport ToProto(const TransferReport& report);
absl::StatusOr<TransferReport> FromProto(const v1::TransferReport& report);

}  // namespace tensorcast::rpc
