// Functions on the engine's replicas that several calls share: wait for a replica that is being made,
// describe a replica, and find the manifest of an artifact. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_client.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

using OnProgress = std::function<void(const TransferProgress&)>;

// Waits for the replica, and calls `on_progress` (may be null) about ten times a second while bytes move.
// Returns the replica's lease, the ingest's error, or the error of the context's deadline or cancellation.
// Records a span if another request started the ingest.
absl::StatusOr<std::unique_ptr<ReplicaLease>> Await(const RequestContext& context, PendingReplica& pending,
                                                    const OnProgress& on_progress);

// Describes one replica; NOT_FOUND when the replica is gone.
absl::StatusOr<v1::Replica> DescribeReplica(const StoreEngine& engine, std::string_view replica_id);

// Returns the artifact's manifest from this node's replica, if there is one. Otherwise returns a verified
// manifest from the global store: `received`, or if `received` is empty, the answer to a call.
absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(const RequestContext& context,
                                                             const StoreEngine& engine,
                                                             GlobalStoreClient& global_store,
                                                             const std::string& artifact_id,
                                                             const std::string& received = "");

}  // namespace tensorcast::daemon
