// Conversions between core's values and messages that need this node's devices or a check; rpc/convert has
// the other conversions. Pure functions.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/replica/replica.h"
#include "core/replica/transfer_report.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

// Like rpc::ToProto; adds the UUIDs of `devices`, which may be null.
v1::Location ToProto(const Location& location, const DeviceRuntime* devices);
v1::TransferReport ToProto(const TransferReport& report, const DeviceRuntime* devices);
// Like rpc::FromProto. If `devices` is not null: INVALID_ARGUMENT for a device that this node does not have.
// A device UUID, when set, overrides the ordinal.
absl::StatusOr<Location> FromProto(const v1::Location& location, const DeviceRuntime* devices);

// Decodes a manifest that came from another process. DATA_LOSS when the id computed from the bytes is not
// `artifact_id`.
absl::StatusOr<std::shared_ptr<const Manifest>> DecodeManifest(std::string_view bytes,
                                                               std::string_view artifact_id);

}  // namespace tensorcast::daemon
