// MaterializeReplica and AttachReplica: a replica of an artifact, here, from whoever has it; and a ticket for
// its bytes.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/service/await.h"
#include "daemon/service/node_parts.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// The functions are thread-safe. NOT_FOUND for unknown keys and artifacts; otherwise the errors of the engine
// and of the sources that were tried.
absl::StatusOr<v1::MaterializeReplicaResult> MaterializeReplica(const NodeParts& parts,
                                                                const RequestContext& context,
                                                                const v1::MaterializeReplicaRequest& request,
                                                                const OnProgress& on_progress);

absl::StatusOr<v1::AttachReplicaResponse> AttachReplica(const NodeParts& parts, const RequestContext& context,
                                                        const v1::AttachReplicaRequest& request);

}  // namespace tensorcast::daemon
