// Which transfer of a daemon's ring a person means. Pure functions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "proto/daemon.pb.h"

namespace tensorcast::explain {

struct FoundTransfer {
  v1::TransferReport report;
  bool under_way = false;
};

// `wanted` is "last" (the one that ended last, or began last where none has ended), a transfer's or a
// replica's id or the beginning of one, or an artifact's whole id. Of several transfers for one replica or
// artifact, the newest. NOT_FOUND, naming
// those there are, when there is none; INVALID_ARGUMENT when several begin so.
absl::StatusOr<FoundTransfer> FindTransfer(const v1::GetStatusResponse& status, std::string_view wanted);

}  // namespace tensorcast::explain
