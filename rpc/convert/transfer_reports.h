// Conversions between the contract's messages and transfer reports or progress
// (core/replica/transfer_report.h). An unknown source type becomes "remote". An unknown reason for a loss
// becomes "source died".
//
// INVALID_ARGUMENT names an unknown stage, or an invalid destination. Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "base/wall_time.h"
#include "core/replica/transfer_report.h"
#include "proto/daemon.pb.h"
#include "proto/types.pb.h"

namespace tensorcast::rpc {

v1::Progress ToProto(const TransferProgress& progress);
TransferProgress FromProto(const v1::Progress& progress);

v1::WallTime ToProto(const WallTime& time);
WallTime FromProto(const v1::WallTime& message);

// Only the id of the trace is sent.
v1::TransferReport ToProto(const TransferReport& report);
absl::StatusOr<TransferReport> FromProto(const v1::TransferReport& report);

}  // namespace tensorcast::rpc
