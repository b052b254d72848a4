#include "core/ingest/ingest_queue.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/ingest/advance.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"

namespace tensorcast {
namespace {

absl::Status StoppingError(std::string_view subject) {
  return absl::CancelledError(
      absl::StrCat("ingest ", subject, ": this daemon is stopping; try again when the daemon runs again"));
}

}  // namespace

// The life of a job, with the structure that holds it at each step:
//
//   Enqueue      jobs_ and, if its artifact is known, places_: behind the job that has its place
//   Admit        the place is free: its replica is in the table (state allocating), the job in queue_
//   NextJob      a thread took it: counted in running_, except while it waits (CountWaiting)
//   LeavePlace   its replica is settled: the next job of the place is admitted, while this one still reports
//   RunJob       it has ended: out of jobs_, and its callers are told
//
// A failed, cancelled or abandoned job passes the same steps, so each job ends in Finish exactly once, and
// each replica that Admit adds is moved to its final state by its job.
IngestQueue::IngestQueue(ReplicaTable* table, const IngestRunner* runner, ReplicaRemoval* removal,
                         Notifier* notifier, int max_running)
    : table_(table),
      runner_(runner),
      removal_(removal),
      notifier_(notifier),
      max_running_(static_cast<size_t>(max_running)) {}

// Jobs that are still queued are run, too: their ingests find themselves cancelled at once and end as all
// others do, with a report and their callbacks. Only an empty queue lets the threads go.
void IngestQueue::Stop() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;  // no thread and no job is added any more
    threads.swap(threads_);
  }
  for (const JobPtr& job : Jobs()) job->Abandon(StoppingError(job->request().subject()), /*forget=*/false);
  for (std::thread& thread : threads) thread.join();
}

// The PendingReplica of a job is made without the lock: it registers with the caller's cancellation, and
// where that is cancelled already, the callback leaves the job at once, which may cancel the job and run the
// callbacks of its work.
absl::StatusOr<std::unique_ptr<PendingReplica>> IngestQueue::Request(const RequestContext& context,
                                                                     IngestRequest request) {
  JobPtr job;
  bool shared = false;
  const bool whole = !request.chunks.has_value();
  {
    absl::MutexLock lock(&mutex_);
    if (request.manifest != nullptr) {
      const std::string& artifact_id = request.manifest->id();
      // What is there is looked at before what runs: a job keeps its place until after its replica is ready,
      // so that no request falls between the two and makes a second one. A replica under live leases becomes
      // the artifact in its own memory, whatever is there.
      if (HeldReplicaOf(request).empty()) {
        absl::StatusOr<std::unique_ptr<ReplicaLease>> there =
            table_->LeaseAt(artifact_id, request.location, request.chunks);
        if (there.ok()) return std::make_unique<PendingReplica>(table_, *std::move(there), request.bytes());
      }
      job = JoinAny(request, context.deadline);
      shared = job != nullptr;
    }
    if (!shared) {
      TC_ASSIGN_OR_RETURN(job, Enqueue(std::move(request), context));
    }
  }
  return std::make_unique<PendingReplica>(table_, std::move(job), context, shared, whole);
}

// Jobs that wait for the place can be joined, too. A job that its callers have all left refuses
// (IngestJob::Join), and the request then waits behind it as a job of its own.
IngestQueue::JobPtr IngestQueue::JoinAny(const IngestRequest& request, SteadyTime deadline) {
  const auto place = places_.find({request.artifact_id(), request.location});
  if (place == places_.end()) return nullptr;
  for (const JobPtr& job : place->second) {
    if (Brings(*job, request) && job->Join(deadline)) return job;
  }
  return nullptr;
}

// The chunks that its replica has already count, too.
bool IngestQueue::Brings(const IngestJob& job, const IngestRequest& request) const {
  if (job.request().Includes(request)) return true;
  if (!request.chunks.has_value()) return false;
  // The wanted chunks that the job does not bring: its replica must have them.
  std::vector<uint32_t> others;
  std::ranges::set_difference(*request.chunks, *job.request().chunks, std::back_inserter(others));
  return table_->HasChunks(job.replica_id(), others);
}

// A new artifact has no id yet, so no place either: two first ingests of equal content run side by side, and
// ReplicaTable::Complete keeps the replica that is ready first.
absl::StatusOr<IngestQueue::JobPtr> IngestQueue::Enqueue(IngestRequest request,
                                                         const RequestContext& context) {
  if (stopping_) return StoppingError(request.subject());
  TC_RETURN_IF_ERROR(runner_->Check(request));
  // Before the job is anywhere. With one thread every queued job has its turn in the end; without any, the
  // job and its callers would wait for a request that may never come.
  if (threads_.empty()) TC_RETURN_IF_ERROR(AddThread());
  auto job = std::make_shared<IngestJob>(std::move(request), context);
  const IngestRequest& wanted = job->request();
  jobs_.insert(job);
  otel::metrics::kTransfersCreated.Add(1, {LocationKindName(wanted.location.kind)});
  if (wanted.manifest != nullptr) {
    std::deque<JobPtr>& place = places_[{wanted.artifact_id(), wanted.location}];
    place.push_back(job);
    // Behind the job that has the place; LeavePlace admits it.
    if (place.size() > 1) return job;
  }
  Admit(job);
  return job;
}

// The replica enters the table here and not in the job's turn: so the listing shows a queued replica. If the
// previous job of this place failed, this one continues from the partial replica that it left.
void IngestQueue::Admit(const JobPtr& job) {
  const IngestRequest& wanted = job->request();
  std::optional<std::string> partial;
  if (wanted.manifest != nullptr) {
    partial = table_->TakeOver(wanted.artifact_id(), wanted.location, job->cancellation());
  }
  if (partial.has_value()) {
    job->TakeOver(*partial);
  } else {
    table_->Add({.id = job->replica_id(),
                 .artifact_id = wanted.artifact_id(),
                 .location = wanted.location,
                 .image_bytes = wanted.layout().image_bytes,
                 .chunks_total = wanted.layout().chunk_count()},
                wanted.manifest, job->cancellation(), otel::IsTracing() ? job->span() : TraceContext());
  }
  queue_.push_back(job);
  StartThreads();
}

// Called by the runner through `on_settled`, on the job's thread and before the job reports.
void IngestQueue::LeavePlace(const JobPtr& job) {
  const IngestRequest& wanted = job->request();
  if (wanted.manifest == nullptr) return;
  absl::MutexLock lock(&mutex_);
  const auto place = places_.find({wanted.artifact_id(), wanted.location});
  CHECK(place != places_.end() && place->second.front() == job) << "transfer " << job->transfer_id();
  place->second.pop_front();
  if (place->second.empty()) {
    places_.erase(place);
  } else {
    Admit(place->second.front());
  }
}

// Called wherever a job is queued or a turn becomes free. Idle threads wake by the condition in NextJob,
// without a signal: absl looks at it each time that the mutex is given back.
void IngestQueue::StartThreads() {
  while (!stopping_ && idle_threads_ < queue_.size() && running_ + idle_threads_ < max_running_) {
    if (const absl::Status started = AddThread(); !started.ok()) {
      // The job stays queued; a thread that ends another job takes it. There is one (Enqueue).
      LOG(ERROR) << started << "; a queued ingest waits until another ingest ends";
      return;
    }
  }
}

absl::Status IngestQueue::AddThread() {
  TC_ASSIGN_OR_RETURN(std::thread started, StartThread("start an ingest", [this] { ThreadLoop(); }));
  threads_.push_back(std::move(started));
  // A thread counts as idle from its start on, although it has yet to come to NextJob: so it is not made
  // twice.
  ++idle_threads_;
  return absl::OkStatus();
}

void IngestQueue::ThreadLoop() {
  while (const JobPtr job = NextJob()) RunJob(job);
}

IngestQueue::JobPtr IngestQueue::NextJob() {
  absl::MutexLock lock(&mutex_);
  auto may_go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    // Also while stopping a queued job waits for its turn.
    return queue_.empty() ? stopping_ : running_ < max_running_;
  };
  mutex_.Await(absl::Condition(&may_go_on));
  --idle_threads_;
  if (queue_.empty()) return nullptr;
  JobPtr job = std::move(queue_.front());
  queue_.pop_front();
  ++running_;
  return job;
}

// Runs without the lock; the runner calls back into CountWaiting and LeavePlace, which take it for a moment.
void IngestQueue::RunJob(const JobPtr& job) {
  IngestRunner::Result result =
      runner_->Run(*job, [this](bool waiting) { CountWaiting(waiting); }, [this, &job] { LeavePlace(job); });
  if (job->forgotten()) {
    // The replica may have become ready just after Forget had looked for what there is.
    const std::string artifact_id = job->request().artifact_id();
    const absl::Status removed = removal_->RemoveMade(job->replica_id(), artifact_id);
    LOG_IF(ERROR, !removed.ok()) << "remove the rest of the deleted artifact " << artifact_id << ": "
                                 << removed;
  }
  removal_->WithdrawUnhealthy();  // what broke a device may have been this
  // The order to the end: the lease is kept (or dropped), then the listener is told, then the job counts as
  // ended, then its callers are told. So the transfer is always either in Jobs() or known to the listener,
  // and a caller finds neither a lease without a caller nor a job that counts.
  if (result.lease.ok()) job->KeepLease(*std::move(result.lease));
  notifier_->TransferEnded(result.report);
  {
    absl::MutexLock lock(&mutex_);
    jobs_.erase(job);
    --running_;
  }
  job->Finish(std::move(result.report));
  absl::MutexLock lock(&mutex_);
  ++idle_threads_;
}

// A job that goes on does not queue for a turn. It may hold memory that the jobs in front of it wait for.
void IngestQueue::CountWaiting(bool waiting) {
  absl::MutexLock lock(&mutex_);
  if (!waiting) {
    ++running_;
    return;
  }
  --running_;
  // The turn that is free now may be for a queued job.
  StartThreads();
}

// The jobs are abandoned without the lock: the cancellation of a job runs callbacks of its sources.
void IngestQueue::Forget(std::string_view artifact_id) {
  for (const JobPtr& job : Jobs()) {
    if (job->request().artifact_id() == artifact_id) {
      job->Abandon(
          absl::CancelledError(absl::StrCat("ingest ", artifact_id,
                                            ": the artifact was deleted meanwhile; put the artifact again")),
          /*forget=*/true);
    }
  }
}

std::vector<IngestQueue::JobPtr> IngestQueue::Jobs() const {
  absl::MutexLock lock(&mutex_);
  return {jobs_.begin(), jobs_.end()};
}

int IngestQueue::active() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(jobs_.size());
}

int IngestQueue::queued() const {
  absl::MutexLock lock(&mutex_);
  size_t queued = queue_.size();
  for (const auto& [key, jobs] : places_) queued += jobs.size() - 1;
  return static_cast<int>(queued);
}

bool IngestQueue::AwaitNone(SteadyTime deadline) const {
  auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return jobs_.empty(); };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&none), TimeLeft(deadline));
}

// Only sources from other nodes have a grant.
int IngestQueue::peer_sources() const {
  int sources = 0;
  for (const JobPtr& job : Jobs()) {
    for (const SourceReport& one : job->progress().Get().sources) {
      sources += one.source.grant_id.empty() ? 0 : 1;
    }
  }
  return sources;
}

std::vector<TransferReport> IngestQueue::Reports() const {
  std::vector<JobPtr> jobs = Jobs();
  std::ranges::sort(jobs, {}, [](const JobPtr& job) { return job->queued(); });
  std::vector<TransferReport> reports;
  reports.reserve(jobs.size());
  for (const JobPtr& job : jobs) reports.push_back(job->ReportSoFar());
  return reports;
}

}  // namespace tensorcast
