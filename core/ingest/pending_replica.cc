#include "core/ingest/pending_replica.h"

#include <utility>

#include "base/status.h"
#include "core/ingest/ingest_job.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

PendingReplica::PendingReplica(ReplicaTable* table, std::unique_ptr<ReplicaLease> there,
                               uint64_t wanted_bytes)
    : table_(table), there_(std::move(there)), wanted_bytes_(wanted_bytes) {}

PendingReplica::PendingReplica(ReplicaTable* table, std::shared_ptr<IngestJob> job,
                               const RequestContext& context, bool shared, bool whole)
    : table_(table), job_(std::move(job)), shared_(shared), whole_(whole) {
  cancelled_ = context.cancellation.OnCancel([this] { Leave(); });
}

PendingReplica::~PendingReplica() {
  cancelled_ = Cancellation::Registration();  // a running call of Leave ends before the members go
  if (job_ != nullptr) {
    job_->DropCallbacks(this);
    Leave();
  }
}

void PendingReplica::Leave() {
  // The caller's cancellation and the destructor both come here, from two threads perhaps; the interest is
  // given back once.
  if (!left_.exchange(true)) job_->Leave();
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> PendingReplica::Wait(const RequestContext& context) {
  // A lease of the caller's own, since Wait may be called again. NOT_FOUND where it was told to drain
  // meanwhile.
  if (there_ != nullptr) return table_->Lease(there_->replica_id(), ReplicaTable::LeaseOf::kReadable);
  TC_ASSIGN_OR_RETURN(const std::string replica_id, job_->Wait(context));
  return table_->Lease(replica_id, whole_ ? ReplicaTable::LeaseOf::kReady : ReplicaTable::LeaseOf::kReadable);
}

void PendingReplica::OnDone(std::function<void()> callback) {
  if (there_ != nullptr) {
    callback();
  } else {
    job_->OnDone(this, std::move(callback));
  }
}

void PendingReplica::Abandon(const absl::Status& why) {
  if (job_ != nullptr) job_->Abandon(why, /*forget=*/false);
}

TransferProgress PendingReplica::progress() const {
  if (there_ == nullptr) return job_->progress().Get();
  return {.bytes_done = wanted_bytes_, .bytes_total = wanted_bytes_};
}

std::optional<TransferReport> PendingReplica::report() const {
  return job_ != nullptr ? job_->report() : std::nullopt;
}

bool PendingReplica::made() const {
  const std::optional<TransferReport> ended = report();
  return ended.has_value() && ended->status.ok() && ended->replica_id == job_->replica_id();
}

TraceContext PendingReplica::ingest() const { return job_ != nullptr ? job_->span() : TraceContext(); }

}  // namespace tensorcast
