// One ingest and its callers. Each caller has one interest in the job. The job is cancelled when the last
// interest is removed, or when the engine abandons the job.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/process_time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/ingest/ingest_request.h"
#include "core/ingest/progress.h"
#include "core/replica/transfer_report.h"
#include "core/replicas/replica_lease.h"

namespace tensorcast {

class IngestJob {
 public:
  // Makes a job with one interest, which belongs to the first caller. `first` is this caller's context.
  IngestJob(IngestRequest request, const RequestContext& first);
  IngestJob(const IngestJob&) = delete;
  IngestJob& operator=(const IngestJob&) = delete;

  const IngestRequest& request() const { return request_; }
  const std::string& transfer_id() const { return transfer_id_; }
  // The id of the replica that the job makes: a new id, or after TakeOver the id of a partial replica.
  // TakeOver is called before Start.
  std::string replica_id() const;
  void TakeOver(const std::string& replica_id);
  SteadyTime queued() const { return queued_; }
  const Cancellation& cancellation() const { return cancellation_; }
  ProgressTracker& progress() { return progress_; }

  // Notes that the job begins to run.
  void Start();
  // The report so far. Only the final report counts verified and refetched chunks.
  TransferReport ReportSoFar() const;

  // The current context of the ingest: the latest deadline of all callers, the job's own cancellation, and
  // span().
  RequestContext Context() const;
  // The ingest's span, a child of the first caller's span.
  const TraceContext& span() const { return span_; }

  // Adds an interest. False if the job is being cancelled or has failed.
  bool Join(SteadyTime deadline);
  // Removes an interest.
  void Leave();
  // Cancels the job for all callers. `why` becomes the result of the job. With `forget`, the replica is
  // removed if the job still completes it.
  void Abandon(const absl::Status& why, bool forget);
  // OK unless abandoned.
  absl::Status abandoned() const;
  bool forgotten() const;

  // Keeps the lease for the callers; ends the lease if no caller is left. Call it before the engine counts
  // the ingest as ended.
  void KeepLease(std::unique_ptr<ReplicaLease> lease);
  // Ends the job with the report's status and runs the callbacks. Call it once.
  void Finish(TransferReport report);

  // Calls `callback` once, on the thread that calls Finish, or at once if the job has finished. `owner`
  // identifies the callback for DropCallbacks.
  void OnDone(const void* owner, std::function<void()> callback);
  // Drops the owner's callbacks. A callback that Finish has already taken may still run afterwards.
  void DropCallbacks(const void* owner);
  // Blocks until the job ends. Returns the id of the replica, or the job's error. The replica stays leased
  // until the last interest is removed. CANCELLED or DEADLINE_EXCEEDED if the context ends first.
  absl::StatusOr<std::string> Wait(const RequestContext& context);
  std::optional<TransferReport> report() const;

 private:
  struct Callback {
    const void* owner;
    std::function<void()> call;
  };

  const IngestRequest request_;
  const std::string transfer_id_;
  const SteadyTime queued_;
  const RequestContext first_;
  const TraceContext span_;
  const Cancellation cancellation_;
  ProgressTracker progress_;

  mutable absl::Mutex mutex_;
  SteadyTime deadline_ ABSL_GUARDED_BY(mutex_);
  SteadyTime start_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const ProcessTime::Watch> process_ ABSL_GUARDED_BY(mutex_);  // set while the job runs
  std::string replica_id_ ABSL_GUARDED_BY(mutex_);
  int interests_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status abandoned_ ABSL_GUARDED_BY(mutex_);
  bool forgotten_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ReplicaLease> lease_ ABSL_GUARDED_BY(mutex_);
  TransferReport report_ ABSL_GUARDED_BY(mutex_);
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
