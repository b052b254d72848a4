// Between the core's values and the messages on the wire. Pure functions; what comes from the wire is checked
// here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/engine/replica.h"
#include "core/engine/transfer.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

// Manifests travel in pieces of this size, well below gRPC's default message limit.
inline constexpr size_t kManifestPieceBytes = size_t{1} << 20;

void SetTimestamp(absl::Time time, google::protobuf::Timestamp* out);
void SetDuration(absl::Duration duration, google::protobuf::Duration* out);
// An unset or negative duration is zero.
absl::Duration GetDuration(const google::protobuf::Duration& duration);

// `devices` (may be null) fills in device UUIDs.
void SetLocation(const Location& location, const DeviceRuntime* devices, v1::Location* out);
// An unset location is CPU. INVALID_ARGUMENT for a negative device, or one this node does not have when
// `devices` is given; a device UUID, when set, decides over the ordinal.
absl::StatusOr<Location> GetLocation(const v1::Location& location, const DeviceRuntime* devices);

void SetReplica(const ReplicaInfo& info, std::string_view node_id, const DeviceRuntime* devices,
                v1::Replica* out);
void SetReport(const TransferReport& report, const DeviceRuntime* devices, v1::TransferReport* out);

// Calls `send` for each piece of a manifest, at least once, until it returns false; false when it did.
bool SendPieces(std::string_view bytes, const std::function<bool(std::string_view piece)>& send);

// Decodes a manifest that came from another process and makes sure that it is the one asked for: DATA_LOSS
// when its id, recomputed from the bytes, is another.
absl::StatusOr<std::shared_ptr<const Manifest>> DecodeManifest(std::string_view bytes,
                                                               std::string_view artifact_id);

}  // namespace tensorcast::daemon
