// Waits for a replica that is being made, and tells how far it is meanwhile.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/engine/engine.h"

namespace tensorcast::daemon {

using OnProgress = std::function<void(const TransferProgress&)>;

// Calls `on_progress` (may be null) about ten times a second while something moves. Ends with the replica,
// the ingest's error, or the context's deadline or cancellation.
absl::StatusOr<std::unique_ptr<ReplicaLease>> Await(const RequestContext& context, PendingReplica& pending,
                                                    const OnProgress& on_progress);

}  // namespace tensorcast::daemon
