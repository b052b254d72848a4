#include "core/engine/pending_replica.h"

#include <atomic>
#include <utility>

#include "base/status.h"

namespace tensorcast {
namespace {

class ReadyPending final : public PendingReplica {
 public:
  ReadyPending(ReplicaTable* table, std::unique_ptr<ReplicaLease> lease)
      : table_(table), lease_(std::move(lease)) {}

  absl::StatusOr<std::unique_ptr<ReplicaLease>> Wait(const RequestContext&) override {
    return table_->Lease(lease_->replica_id());
  }
  void OnDone(std::function<void()> callback) override { callback(); }
  TransferProgress progress() const override {
    const uint64_t bytes = lease_->manifest()->layout().image_bytes;
    return TransferProgress{bytes, bytes, SourceInfo()};
  }
  std::optional<TransferReport> report() const override { return std::nullopt; }
  bool shared() const override { return false; }
  bool made() const override { return false; }
  TraceContext ingest() const override { return {}; }

 private:
  ReplicaTable* const table_;
  const std::unique_ptr<ReplicaLease> lease_;
};

class JobPending final : public PendingReplica {
 public:
  JobPending(ReplicaTable* table, std::shared_ptr<IngestJob> job, const RequestContext& context, bool shared)
      : table_(table), job_(std::move(job)), shared_(shared) {
    cancelled_ = context.cancellation.OnCancel([this] { Leave(); });
  }

  ~JobPending() override {
    cancelled_ = Cancellation::Registration();  // a running call of Leave ends before the members go
    job_->DropCallbacks(this);
    Leave();
  }

  absl::StatusOr<std::unique_ptr<ReplicaLease>> Wait(const RequestContext& context) override {
    TC_ASSIGN_OR_RETURN(const std::string replica_id, job_->Wait(context));
    return table_->Lease(replica_id);
  }
  void OnDone(std::function<void()> callback) override { job_->OnDone(this, std::move(callback)); }
  TransferProgress progress() const override { return job_->progress().Get(); }
  std::optional<TransferReport> report() const override { return job_->report(); }
  bool shared() const override { return shared_; }
  bool made() const override {
    const std::optional<TransferReport> report = job_->report();
    return report.has_value() && report->status.ok() && report->replica_id == job_->replica_id();
  }
  TraceContext ingest() const override { return job_->span(); }

 private:
  void Leave() {
    if (!left_.exchange(true)) {
      job_->Leave();
    }
  }

  ReplicaTable* const table_;
  const std::shared_ptr<IngestJob> job_;
  const bool shared_;
  std::atomic<bool> left_ = false;
  Cancellation::Registration cancelled_;
};

}  // namespace

std::unique_ptr<PendingReplica> MakeReadyPending(ReplicaTable* table, std::unique_ptr<ReplicaLease> lease) {
  return std::make_unique<ReadyPending>(table, std::move(lease));
}

std::unique_ptr<PendingReplica> MakeJobPending(ReplicaTable* table, std::shared_ptr<IngestJob> job,
                                               const RequestContext& context, bool shared) {
  return std::make_unique<JobPending>(table, std::move(job), context, shared);
}

}  // namespace tensorcast
