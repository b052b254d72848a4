// What several calls do with the engine's replicas: wait for one that is being made, and say what one is. The
// functions are thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/engine/engine.h"

namespace tensorcast::daemon {

using OnProgress = std::function<void(const TransferProgress&)>;

// Calls `on_progress` (may be null) about ten times a second while something moves. Ends with the replica,
// the ingest's error, or the context's deadline or cancellation.
absl::StatusOr<std::unique_ptr<ReplicaLease>> Await(const RequestContext& context, PendingReplica& pending,
                                                    const OnProgress& on_progress);

// The facts of one replica; NOT_FOUND when it is gone.
absl::StatusOr<ReplicaInfo> FindReplica(const StoreEngine& engine, std::string_view replica_id);

}  // namespace tensorcast::daemon
