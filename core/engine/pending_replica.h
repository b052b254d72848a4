// What the engine hands to a caller that wants a replica.
#pragma once

#include <memory>

#include "core/engine/engine.h"
#include "core/engine/ingest_job.h"
#include "core/engine/replica_table.h"

namespace tensorcast {

// The replica was there already. `table` must outlive it.
std::unique_ptr<PendingReplica> MakeReadyPending(ReplicaTable* table, std::unique_ptr<ReplicaLease> lease);

// Owns one interest in the job, until it is destroyed or `context` is cancelled. `table` must outlive it,
// unless the job failed.
std::unique_ptr<PendingReplica> MakeJobPending(ReplicaTable* table, std::shared_ptr<IngestJob> job,
                                               const RequestContext& context, bool shared);

}  // namespace tensorcast
