// Conversions of transfer reports, and of the progress of running transfers (core/replica/transfer_report.h),
// to the contract's messages and back. Reports are for people, so a word that only a newer version has
// becomes the most general value, if there is one: an unknown source type becomes "remote", an unknown reason
// for a loss becomes "source died".
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
