// Conversions that need this node's devices or a check, between core's values and messages; rpc/convert has
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
// Like rpc::FromProto. INVALID_ARGUMENT also for a negative ordinal and, with `devices`, an ordinal that this
// node does not have. With `devices` a device UUID, when set, overrides the ordinal; NOT_FOUND if unknown.
absl::StatusOr<Location> FromProto(const v1::Location& location, const DeviceRuntime* devices);

// Decodes a manifest that came from another process. DATA_LOSS when the bytes cannot be decoded, or when the
// id computed from the bytes is not `artifact_id`.
absl::StatusOr<std::shared_ptr<const Manifest>> DecodeManifest(std::string_view bytes,
                                                               std::string_view artifact_id);

}  // namespace tensorcast::daemon
