// Between the core's values and messages, where that takes this node's devices or a check;
// plain conversions are in rpc/convert. Pure functions.
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

// `devices` (may be null) fills in device UUIDs.
void SetLocation(const Location& location, const DeviceRuntime* devices, v1::Location* out);
// An unset location is CPU. INVALID_ARGUMENT for a negative device, or one this node does not have when
// `devices` is given; a device UUID, when set, decides over the ordinal.
absl::StatusOr<Location> GetLocation(const v1::Location& location, const DeviceRuntime* devices);

void SetReplica(const ReplicaInfo& info, std::string_view node_id, const DeviceRuntime* devices,
                v1::Replica* out);
void SetReport(const TransferReport& report, const DeviceRuntime* devices, v1::TransferReport* out);

// Decodes a manifest that came from another process and makes sure that it is the one asked for: DATA_LOSS
// when its id, recomputed from the bytes, is another.
absl::StatusOr<std::shared_ptr<const Manifest>> DecodeManifest(std::string_view bytes,
                                                               std::string_view artifact_id);

}  // namespace tensorcast::daemon
