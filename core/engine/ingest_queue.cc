// The engine's second half: the queue of ingests and the threads that run them.
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/engine/engine_impl.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"

namespace tensorcast {

absl::StatusOr<EngineImpl::JobPtr> EngineImpl::Enqueue(IngestSpec spec, const RequestContext& context) {
  if (stopping_) {
    return absl::CancelledError("the store engine is shutting down");
  }
  TC_RETURN_IF_ERROR(runner_.Check(spec));
  auto job = std::make_shared<IngestJob>(std::move(spec), context);
  NewReplica replica;
  replica.id = job->replica_id();
  replica.manifest = job->spec().manifest;
  replica.artifact_id = job->spec().artifact_id();
  replica.location = job->spec().location;
  replica.image_bytes = job->spec().layout().image_bytes;
  replica.chunks_total = job->spec().layout().chunk_count();
  replica.ingest = job->cancellation();
  if (otel::IsTracing()) {
    replica.made_by = job->span();
  }
  table_.Add(std::move(replica));
  jobs_.insert(job);
  if (job->spec().manifest != nullptr) {
    // Takes the place of a job that is being cancelled, if there is one.
    joinable_[{job->spec().artifact_id(), job->spec().location}] = job;
  }
  otel::metrics::kTransfersCreated.Add(1, {LocationKindName(job->spec().location.kind)});
  queue_.push_back(job);
  StartRunners();
  return job;
}

void EngineImpl::StartRunners() {
  const size_t limit = static_cast<size_t>(options_.max_concurrent_ingests);
  while (!stopping_ && idle_runners_ < queue_.size() && running_ + idle_runners_ < limit) {
    try {
      runners_.emplace_back([this] { RunnerLoop(); });
      ++idle_runners_;
    } catch (const std::system_error& error) {
      LOG(ERROR) << "no thread for an ingest, it waits for another to end: " << error.what();
      return;
    }
  }
}

void EngineImpl::RunnerLoop() {
  while (const JobPtr job = NextJob()) {
    RunJob(job);
  }
}

EngineImpl::JobPtr EngineImpl::NextJob() {
  absl::MutexLock lock(&mutex_);
  const size_t limit = static_cast<size_t>(options_.max_concurrent_ingests);
  auto may_go_on = [this, limit]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return queue_.empty() ? stopping_ : running_ < limit;
  };
  mutex_.Await(absl::Condition(&may_go_on));
  --idle_runners_;
  if (queue_.empty()) {
    return nullptr;
  }
  JobPtr job = std::move(queue_.front());
  queue_.pop_front();
  ++running_;
  return job;
}

void EngineImpl::RunJob(const JobPtr& job) {
  IngestRunner::Result result = runner_.Run(*job, [this](bool waiting) { CountWaiting(waiting); });
  if (job->forgotten()) {
    // It may have become ready just after Forget had looked for what there is. Only what this ingest made
    // goes: the artifact may have been put again since.
    if (const absl::StatusOr<ReplicaInfo> made = table_.Find(job->replica_id()); made.ok()) {
      DropForgotten(*made);
    }
    const absl::Status removed = RemovePackedFile(job->spec().artifact_id());
    LOG_IF(ERROR, !removed.ok()) << "what is left of " << job->spec().artifact_id() << ": " << removed;
  }
  if (result.lease.ok()) {
    job->KeepLease(*std::move(result.lease));
  }
  {
    absl::MutexLock lock(&mutex_);
    jobs_.erase(job);
    const auto mine = joinable_.find({job->spec().artifact_id(), job->spec().location});
    if (mine != joinable_.end() && mine->second == job) {
      joinable_.erase(mine);
    }
    --running_;
  }
  notifier_->TransferEnded(result.report);
  job->Finish(std::move(result.report));
  absl::MutexLock lock(&mutex_);
  ++idle_runners_;
}

void EngineImpl::CountWaiting(bool waiting) {
  absl::MutexLock lock(&mutex_);
  if (!waiting) {
    ++running_;
    return;
  }
  --running_;
  StartRunners();
}

void EngineImpl::AbandonJobs(std::string_view artifact_id, const absl::Status& why) {
  std::vector<JobPtr> abandoned;
  {
    absl::MutexLock lock(&mutex_);
    for (const JobPtr& job : jobs_) {
      if (job->spec().artifact_id() == artifact_id) {
        abandoned.push_back(job);
      }
    }
  }
  for (const JobPtr& job : abandoned) {
    job->Abandon(why, /*forget=*/true);
  }
}

}  // namespace tensorcast
