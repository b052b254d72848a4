// CheckOrigin: the global store asks whether what an artifact was imported from here still is there.
#pragma once

#include "absl/status/status.h"
#include "daemon/service/node_parts.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// Opens the files of the origin as a load would, and reads their headers. `response` says whether they are
// intact; an error says that this could not be found out. What lies outside the import roots is not looked
// at, and not intact. RESOURCE_EXHAUSTED when several checks hang already, on a disk that does not answer.
absl::Status CheckOrigin(const NodeParts& parts, const v1::CheckOriginRequest& request,
                         v1::CheckOriginResponse* response);

}  // namespace tensorcast::daemon
