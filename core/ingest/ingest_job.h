// One ingest and its callers. Several callers may share it; it is cancelled when the last one has left,
// or the engine abandons it.
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
  // With one interest, that of `first`.
  IngestJob(IngestRequest request, const RequestContext& first);
  IngestJob(const IngestJob&) = delete;
  IngestJob& operator=(const IngestJob&) = delete;

  const IngestRequest& request() const { return request_; }
  const std::string& transfer_id() const { return transfer_id_; }
  // Of the replica that it makes: a new one, until it takes over a partial one, which is before its turn.
  std::string replica_id() const;
  void TakeOver(const std::string& replica_id);
  SteadyTime queued() const { return queued_; }
  const Cancellation& cancellation() const { return cancellation_; }
  ProgressTracker& progress() { return progress_; }

  // Its turn has come.
  void Start();
  // What it has done until now. The chunks it verified and fetched again are told at its end.
  TransferReport ReportSoFar() const;

  // The context of the work as it is now: the latest deadline of the callers that joined, the job's own
  // cancellation, the span reserved for the ingest, which is a child of the caller's that started it.
  RequestContext Context() const;
  const TraceContext& span() const { return span_; }

  // One more interest; false when the job is being cancelled and cannot be joined.
  bool Join(SteadyTime deadline);
  // One less.
  void Leave();
  // Cancels it for all callers; `why` becomes its result. `forget`: what it made in spite of that has
  // to go.
  void Abandon(const absl::Status& why, bool forget);
  // OK unless abandoned.
  absl::Status abandoned() const;
  bool forgotten() const;

  // Keeps the replica for callers that will ask for it; where no caller is left, the lease ends here.
  // Before the engine counts the ingest as ended, so that by then no lease is left without a caller.
  void KeepLease(std::unique_ptr<ReplicaLease> lease);
  // The end, once, with the report's status. Runs the callbacks.
  void Finish(TransferReport report);

  // Calls `callback` once, on the thread that calls Finish; at once when that has been. `owner` is what
  // DropCallbacks gets.
  void OnDone(const void* owner, std::function<void()> callback);
  // The owner's callbacks are called no more; one that runs may go on when this returns.
  void DropCallbacks(const void* owner);
  // Blocks for the end; the id of the replica. It stays leased until the last interest leaves.
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
  std::shared_ptr<const ProcessTime::Watch> process_ ABSL_GUARDED_BY(mutex_);  // while it runs
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
