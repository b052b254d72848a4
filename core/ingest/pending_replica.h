// What a caller that wants a replica is given at once: the replica that was there already, or its interest in
// the ingest that makes it and that others may share. Dropping it gives up the interest; when the last one
// goes, the ingest is cancelled.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/replica/transfer_report.h"
#include "core/replicas/replica_lease.h"

namespace tensorcast {

class IngestJob;
class ReplicaTable;

class PendingReplica {
 public:
  // Made by the engine. The replica was there already, or has the chunks that were wanted: so many bytes.
  // `table` must outlive this.
  PendingReplica(ReplicaTable* table, std::unique_ptr<ReplicaLease> there, uint64_t wanted_bytes);
  // An ingest. Owns one interest in the job, until it is destroyed or `context` is cancelled. If no `whole`
  // replica is wanted a partial one will do. `table` must outlive it, unless the job failed.
  PendingReplica(ReplicaTable* table, std::shared_ptr<IngestJob> job, const RequestContext& context,
                 bool shared, bool whole);
  PendingReplica(const PendingReplica&) = delete;
  PendingReplica& operator=(const PendingReplica&) = delete;
  ~PendingReplica();

  // Blocks to the end, the context's deadline or its cancellation. Where chunks were chosen, the lease is on
  // a replica that has them (ReplicaLease::availability) or all.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Wait(const RequestContext& context);
  // Calls `callback` once, on an engine thread or at once, after which Wait returns without blocking.
  // Destroying this object first drops the callback; one that runs by then goes on.
  void OnDone(std::function<void()> callback);
  TransferProgress progress() const;
  // The finished transfer, or nullopt when there was none: the replica was already there.
  std::optional<TransferReport> report() const;
  // True when another caller had started the ingest.
  bool shared() const { return shared_; }
  // True once it ended with a replica that this ingest made, and not one that was here with the same content.
  bool made() const;
  // The span of the ingest; not valid when there was none.
  TraceContext ingest() const;

 private:
  void Leave();

  ReplicaTable* const table_;
  const std::unique_ptr<ReplicaLease> there_;  // either this
  const std::shared_ptr<IngestJob> job_;       // or this is set
  const uint64_t wanted_bytes_ = 0;            // of the one that is there
  const bool shared_ = false;
  const bool whole_ = false;
  std::atomic<bool> left_ = false;  // the job
  Cancellation::Registration cancelled_;
};

}  // namespace tensorcast
