// The immediate result of a request for a replica: either the existing replica, or an interest in the ingest
// that makes the replica. Several callers may share an ingest. The destructor gives up the interest. An
// ingest without any interest is cancelled.
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
  // For an existing replica that has all wanted chunks, together `wanted_bytes` bytes. `table` must outlive
  // this object.
  PendingReplica(ReplicaTable* table, std::unique_ptr<ReplicaLease> there, uint64_t wanted_bytes);
  // For an ingest. Owns one interest in the job until this object is destroyed or `context` is cancelled.
  // With `whole`, all chunks are wanted; without it, a partial replica is enough. `table` must outlive this
  // object, unless the job failed.
  PendingReplica(ReplicaTable* table, std::shared_ptr<IngestJob> job, const RequestContext& context,
                 bool shared, bool whole);
  PendingReplica(const PendingReplica&) = delete;
  PendingReplica& operator=(const PendingReplica&) = delete;
  ~PendingReplica();

  // Blocks until the ingest ends, or until the context ends. If only some chunks were wanted, the lease is on
  // a replica that has at least these chunks (ReplicaLease::availability). NOT_FOUND if the replica was
  // removed meanwhile.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Wait(const RequestContext& context);
  // Calls `callback` once, on an engine thread when the ingest ends, or at once if no ingest runs. In the
  // callback Wait does not block. The destructor drops the callback, but cannot stop a call that has begun.
  void OnDone(std::function<void()> callback);
  TransferProgress progress() const;
  // The finished transfer; nullopt if the replica existed already.
  std::optional<TransferReport> report() const;
  // Cancels the ingest for all callers that share it. `why` becomes the result of the ingest. No effect after
  // the ingest's end.
  void Abandon(const absl::Status& why);
  // Whether another caller started the ingest.
  bool shared() const { return shared_; }
  // Whether the ingest has ended with a replica that it made. False if the result is a replica of the same
  // artifact that existed already.
  bool made() const;
  // The span of the ingest; not valid if there was no ingest.
  TraceContext ingest() const;

 private:
  void Leave();

  ReplicaTable* const table_;
  const std::unique_ptr<ReplicaLease> there_;  // set for an existing replica, else null
  const std::shared_ptr<IngestJob> job_;       // set for an ingest, else null
  const uint64_t wanted_bytes_ = 0;            // of the existing replica
  const bool shared_ = false;
  const bool whole_ = false;
  std::atomic<bool> left_ = false;  // this object's interest in the job is gone
  Cancellation::Registration cancelled_;
};

}  // namespace tensorcast
