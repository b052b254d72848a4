// Between core's values and messages, where that takes this node's devices or a check; all else is
// rpc/convert's. Pure functions.
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

// As rpc::ToProto, with the UUIDs of `devices` (may be null).
v1::Location ToProto(const Location& location, const DeviceRuntime* devices);
v1::TransferReport ToProto(const TransferReport& report, const DeviceRuntime* devices);
// As rpc::FromProto, and INVALID_ARGUMENT for a device that this node does not have when `devices` is given;
// a device UUID, when set, decides over the ordinal.
absl::StatusOr<Location> FromProto(const v1::Location& location, const DeviceRuntime* devices);

// Decodes a manifest that came from another process and makes sure that it is the one asked for: DATA_LOSS
// when its id, recomputed from the bytes, is another.
absl::StatusOr<std::shared_ptr<const Manifest>> DecodeManifest(std::string_view bytes,
                                                               std::string_view artifact_id);

}  // namespace tensorcast::daemon
