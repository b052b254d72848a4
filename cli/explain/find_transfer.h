// Finds the transfer that a user names, among those in a daemon's status. Pure functions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "proto/daemon.pb.h"

namespace tensorcast::explain {

struct FoundTransfer {
  v1::TransferReport report;
  bool under_way = false;
};

// `wanted`: the first characters of a transfer's or a replica's id, the whole id of an artifact, or "last".
// "last" is the transfer that ended last; if no transfer has ended, the transfer that began last. If several
// transfers made the replica or artifact, returns the newest transfer. NOT_FOUND, with a list of the known
// transfers, if no transfer matches. INVALID_ARGUMENT if several ids begin with `wanted`.
absl::StatusOr<FoundTransfer> FindTransfer(const v1::GetStatusResponse& status, std::string_view wanted);

}  // namespace tensorcast::explain
