#include "core/engine/pending_replica.h"

#include <utility>

#include "base/status.h"
#include "core/engine/ingest_job.h"
#include "core/engine/replica_table.h"

namespace tensorcast {

PendingReplica::PendingReplica(ReplicaTable* table, std::unique_ptr<ReplicaLease> ready)
    : table_(table), ready_(std::move(ready)) {}

PendingReplica::PendingReplica(ReplicaTable* table, std::shared_ptr<IngestJob> job,
                               const RequestContext& context, bool shared)
    : table_(table), job_(std::move(job)), shared_(shared) {
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
  if (ready_ != nullptr) return table_->Lease(ready_->replica_id());
  TC_ASSIGN_OR_RETURN(const std::string replica_id, job_->Wait(context));
  return table_->Lease(replica_id);
}

void PendingReplica::OnDone(std::function<void()> callback) {
  if (ready_ != nullptr) {
    callback();
  } else {
    job_->OnDone(this, std::move(callback));
  }
}

TransferProgress PendingReplica::progress() const {
  if (ready_ == nullptr) return job_->progress().Get();
  const uint64_t bytes = ready_->manifest()->layout().image_bytes;
  return TransferProgress{bytes, bytes, SourceInfo()};
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
