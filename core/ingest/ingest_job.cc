#include "core/ingest/ingest_job.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/span.h"

namespace tensorcast {

// The span is reserved here, so that the reports of the first caller and of callers that join name it before
// the ingest runs. `first` is copied with its trace and request id; Context replaces its deadline and its
// cancellation.
IngestJob::IngestJob(IngestRequest request, const RequestContext& first)
    : request_(std::move(request)),
      transfer_id_(NewUuid()),
      queued_(SteadyNow()),
      first_(first.Child()),
      span_(otel::ReserveSpan(first.trace)),
      progress_(request_.bytes()),
      deadline_(first.deadline),
      replica_id_(NewUuid()) {}

std::string IngestJob::replica_id() const {
  absl::MutexLock lock(&mutex_);
  return replica_id_;
}

void IngestJob::TakeOver(const std::string& replica_id) {
  absl::MutexLock lock(&mutex_);
  replica_id_ = replica_id;
}

// A job passes through: queued (made) - running (Start) - done (Finish). Abandon and the last Leave can come
// in each of them; both only cancel the work, which then ends by itself, in Finish. No lock is held while the
// work is cancelled or callbacks run, since either may call back into the job.
void IngestJob::Start() {
  auto process = std::make_shared<const ProcessTime::Watch>(LimitedDirection::kReceive);
  absl::MutexLock lock(&mutex_);
  start_ = SteadyNow();
  process_ = std::move(process);
}

// Each mutex is taken alone and for a moment, so a report of a running job does not show one single instant.
TransferReport IngestJob::ReportSoFar() const {
  TransferReport report;
  report.transfer_id = transfer_id_;
  report.artifact_id = request_.artifact_id();
  report.destination = request_.location;
  report.trace = first_.trace;
  report.span = span_;
  report.queued = queued_;
  std::shared_ptr<const ProcessTime::Watch> process;
  {
    absl::MutexLock lock(&mutex_);
    process = process_;
  }
  if (process != nullptr) report.wall_time = process->Elapsed();
  progress_.Report(&report);
  report.end = SteadyNow();
  absl::MutexLock lock(&mutex_);
  report.start = start_;
  report.replica_id = replica_id_;
  return report;
}

RequestContext IngestJob::Context() const {
  RequestContext context = first_;
  context.cancellation = cancellation_;
  context.trace = span_;
  absl::MutexLock lock(&mutex_);
  context.deadline = deadline_;
  return context;
}

// No interested caller means that it is being cancelled, though its end may be far yet: a new caller needs a
// new one.
// A job that is done with success can still be joined: it stays in its queue's place until its replica is
// settled, and its lease is kept as long as one interest is left.
bool IngestJob::Join(SteadyTime deadline) {
  absl::MutexLock lock(&mutex_);
  if (interests_ == 0 || !abandoned_.ok() || (done_ && !report_.status.ok())) return false;
  ++interests_;
  deadline_ = std::max(deadline_, deadline);
  return true;
}

void IngestJob::Leave() {
  std::unique_ptr<ReplicaLease> unneeded;  // ends after the lock
  {
    absl::MutexLock lock(&mutex_);
    if (--interests_ > 0) return;
    // Done already: its replica was kept for the callers, and none is left.
    unneeded = std::move(lease_);
    if (done_) return;
  }
  cancellation_.Cancel();
}

void IngestJob::Abandon(const absl::Status& why, bool forget) {
  {
    absl::MutexLock lock(&mutex_);
    abandoned_.Update(why);
    forgotten_ |= forget;
    if (done_) return;
  }
  cancellation_.Cancel();
}

absl::Status IngestJob::abandoned() const {
  absl::MutexLock lock(&mutex_);
  return abandoned_;
}

bool IngestJob::forgotten() const {
  absl::MutexLock lock(&mutex_);
  return forgotten_;
}

// Decided under the lock that Leave takes: either the lease is kept and the last one to leave drops it, or
// all have left and it ends with the argument.
void IngestJob::KeepLease(std::unique_ptr<ReplicaLease> lease) {
  absl::MutexLock lock(&mutex_);
  if (interests_ > 0) lease_ = std::move(lease);
}

void IngestJob::Finish(TransferReport report) {
  std::vector<Callback> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    CHECK(!done_) << "transfer " << transfer_id_ << " ended twice";
    done_ = true;
    process_.reset();
    report_ = std::move(report);
    // From here on DropCallbacks finds nothing: a callback may be called although its owner has just dropped
    // it, and so has to own what it uses.
    callbacks.swap(callbacks_);
  }
  for (const Callback& callback : callbacks) callback.call();
}

void IngestJob::OnDone(const void* owner, std::function<void()> callback) {
  {
    absl::MutexLock lock(&mutex_);
    if (!done_) {
      callbacks_.push_back({owner, std::move(callback)});
      return;
    }
  }
  callback();
}

void IngestJob::DropCallbacks(const void* owner) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(callbacks_, [owner](const Callback& callback) { return callback.owner == owner; });
}

// The caller's own context ends this wait, not the job: the interest ends with the PendingReplica.
absl::StatusOr<std::string> IngestJob::Wait(const RequestContext& context) {
  const Cancellation::Registration wake =
      // The cancellation is not guarded by the mutex; taking it is what makes absl look at the condition
      // again.
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  absl::MutexLock lock(&mutex_);
  auto may_go_on = [this, &context]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return done_ || context.cancellation.IsCancelled();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&may_go_on), TimeLeft(context.deadline));
  if (!done_) {
    const std::string what =
        absl::StrCat("wait for ", request_.subject(), " at ", request_.location.ToString());
    TC_RETURN_IF_ERROR(context.Check(what));
    return absl::DeadlineExceededError(
        absl::StrCat(what, ": the transfer did not end in time; allow more time"));
  }
  TC_RETURN_IF_ERROR(report_.status);
  return report_.replica_id;
}

std::optional<TransferReport> IngestJob::report() const {
  absl::MutexLock lock(&mutex_);
  return done_ ? std::optional<TransferReport>(report_) : std::nullopt;
}

}  // namespace tensorcast
