#include "core/engine/engine.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/engine/engine_impl.h"
#include "core/engine/pending_replica.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast {
namespace {

constexpr Location kDisk{LocationKind::kDisk, 0};

int CopyThreads(const EngineOptions& options) {
  if (options.copy_threads > 0) {
    return options.copy_threads;
  }
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
}

uint64_t StagingBytes(const StagingRing& staging) {
  const uint64_t granules = (staging.buffer_bytes() + kGranuleBytes - 1) / kGranuleBytes;
  return granules * kGranuleBytes * staging.buffers();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreEngine>> StoreEngine::Create(const EngineOptions& options) {
  if (options.host_pool == nullptr || options.max_concurrent_ingests < 1 || options.staging_buffers < 0) {
    return absl::InvalidArgumentError("a store engine needs a host pool, and room for at least one ingest");
  }
  // Only what is on its way to a device or a file is staged.
  const bool stages = options.artifact_store != nullptr ||
                      (options.devices != nullptr && !options.devices->devices().empty());
  TC_ASSIGN_OR_RETURN(std::unique_ptr<StagingRing> staging,
                      StagingRing::Create(options.host_pool, stages ? options.staging_buffers : 0,
                                          options.staging_buffer_bytes));
  auto engine = std::make_unique<EngineImpl>(options, std::move(staging));
  engine->OfferPackedFiles();
  return engine;
}

EngineImpl::EngineImpl(const EngineOptions& options, std::unique_ptr<StagingRing> staging)
    : options_(options),
      staging_(std::move(staging)),
      device_pool_(options.devices, options.device_pool_bytes),
      notifier_(std::make_unique<Notifier>(options.listener)),
      table_(notifier_.get()),
      space_(&table_, options.host_pool, &device_pool_, options.eviction_guard, StagingBytes(*staging_)),
      runner_({&table_, &space_, staging_.get(), &device_pool_, options.devices, options.artifact_store,
               &disk_names_, CopyThreads(options)}) {}

EngineImpl::~EngineImpl() {
  std::vector<std::thread> runners;
  std::vector<JobPtr> jobs;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;  // nobody adds runners or jobs any more
    jobs.assign(jobs_.begin(), jobs_.end());
    runners.swap(runners_);
  }
  for (const JobPtr& job : jobs) {
    job->Abandon(absl::CancelledError("the store engine is shutting down"), /*forget=*/false);
  }
  for (std::thread& runner : runners) {
    runner.join();
  }
  // While everything else still stands: the listener may call the engine.
  notifier_.reset();
}

void EngineImpl::OfferPackedFiles() {
  if (options_.artifact_store == nullptr) {
    return;
  }
  for (std::shared_ptr<PackedFile>& file : options_.artifact_store->List()) {
    table_.AddPackedFile(std::move(file));
  }
}

absl::StatusOr<std::unique_ptr<PendingReplica>> EngineImpl::Materialize(const RequestContext& context,
                                                                        MaterializeRequest request) {
  if (request.manifest == nullptr) {
    return absl::InvalidArgumentError("a replica cannot be materialized without the artifact's manifest");
  }
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("materialize ", request.manifest->id())));
  IngestSpec spec;
  spec.manifest = std::move(request.manifest);
  spec.location = request.location;
  spec.sources = std::move(request.sources);
  spec.wait_for_space = request.wait_for_space;
  if (spec.location == kDisk) {
    DropIfLost(spec.manifest->id());
  }
  JobPtr job;
  bool shared = false;
  {
    absl::MutexLock lock(&mutex_);
    const std::string& artifact_id = spec.manifest->id();
    absl::StatusOr<std::unique_ptr<ReplicaLease>> ready = table_.Lease(artifact_id, spec.location);
    if (ready.ok()) {
      return MakeReadyPending(&table_, *std::move(ready));
    }
    const auto running = joinable_.find({artifact_id, spec.location});
    shared = running != joinable_.end() && running->second->Join(context.deadline);
    if (shared) {
      job = running->second;
    } else {
      TC_ASSIGN_OR_RETURN(job, Enqueue(std::move(spec), context));
    }
  }
  return MakeJobPending(&table_, std::move(job), context, shared);
}

absl::StatusOr<std::unique_ptr<PendingReplica>> EngineImpl::Ingest(const RequestContext& context,
                                                                   FirstIngestRequest request) {
  TC_RETURN_IF_ERROR(context.Check("ingest of a new artifact"));
  TC_RETURN_IF_ERROR(ValidateLayout(request.layout));
  if (request.sources == nullptr) {
    return absl::InvalidArgumentError("a new artifact cannot be ingested without a source");
  }
  IngestSpec spec;
  spec.first_layout = std::move(request.layout);
  spec.first_metadata = std::move(request.metadata);
  spec.location = request.location;
  spec.sources = std::move(request.sources);
  spec.wait_for_space = request.wait_for_space;
  JobPtr job;
  {
    absl::MutexLock lock(&mutex_);
    TC_ASSIGN_OR_RETURN(job, Enqueue(std::move(spec), context));
  }
  return MakeJobPending(&table_, std::move(job), context, /*shared=*/false);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> EngineImpl::LeaseReplica(std::string_view replica_id) {
  return table_.Lease(replica_id);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> EngineImpl::LeaseArtifact(std::string_view artifact_id,
                                                                        Location location) {
  return table_.Lease(artifact_id, location);
}

absl::Status EngineImpl::Evict(std::string_view replica_id, bool force) {
  TC_ASSIGN_OR_RETURN(const ReplicaInfo replica, table_.Find(replica_id));
  const bool guarded = !force && !replica.pinned && replica.state == ReplicaState::kReady;
  if (guarded && options_.eviction_guard != nullptr) {
    if (absl::Status allowed = options_.eviction_guard->MayEvict(replica); !allowed.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("replica ", replica_id, " must stay (force evicts it anyway): ", allowed.message()));
    }
  }
  TC_RETURN_IF_ERROR(table_.Drain(replica_id, {}));
  if (replica.state == ReplicaState::kReady) {
    otel::metrics::kPoolEvictions.Add(1, {LocationKindName(replica.location.kind), "request"});
  }
  return replica.location == kDisk ? RemovePackedFile(replica.artifact_id) : absl::OkStatus();
}

absl::Status EngineImpl::SetPinned(std::string_view replica_id, bool pinned) {
  return table_.SetPinned(replica_id, pinned);
}

absl::Status EngineImpl::Forget(std::string_view artifact_id, absl::Time as_of) {
  AbandonJobs(artifact_id,
              absl::CancelledError(absl::StrCat(artifact_id, " was deleted while it was being ingested")));
  for (const ReplicaInfo& replica : table_.FindArtifact(artifact_id)) {
    if (replica.ready_since <= as_of) {
      DropForgotten(replica);
    }
  }
  return RemovePackedFile(std::string(artifact_id));
}

void EngineImpl::DropForgotten(const ReplicaInfo& replica) {
  // NOT_FOUND and the like: it went by itself meanwhile.
  if (replica.state == ReplicaState::kReady && table_.Drain(replica.id, {.even_pinned = true}).ok()) {
    otel::metrics::kPoolEvictions.Add(1, {LocationKindName(replica.location.kind), "deleted"});
  }
}

absl::Status EngineImpl::RemovePackedFile(const std::string& artifact_id) {
  if (options_.artifact_store == nullptr) {
    return absl::OkStatus();
  }
  const NameLocks::Held held = disk_names_.Acquire(artifact_id);
  if (table_.Lease(artifact_id, kDisk).ok()) {
    return absl::OkStatus();  // written anew meanwhile
  }
  const absl::Status removed = options_.artifact_store->Remove(artifact_id);
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

void EngineImpl::DropLostFiles() {
  if (options_.artifact_store == nullptr) {
    return;
  }
  options_.artifact_store->ForgetRemovedDamage();
  for (const ReplicaInfo& replica : table_.List()) {
    if (replica.location == kDisk && replica.state == ReplicaState::kReady) {
      DropIfLost(replica.artifact_id);
    }
  }
}

void EngineImpl::DropIfLost(const std::string& artifact_id) {
  const auto is_lost = [&] {
    return absl::IsFailedPrecondition(options_.artifact_store->Find(artifact_id).status());
  };
  if (!table_.Lease(artifact_id, kDisk).ok() || !is_lost()) {
    return;
  }
  // Under this lock a file is there before its replica is ready, and longer than that.
  const NameLocks::Held held = disk_names_.Acquire(artifact_id);
  if (!is_lost()) {
    return;
  }
  for (const ReplicaInfo& replica : table_.FindArtifact(artifact_id)) {
    if (replica.location == kDisk && replica.state == ReplicaState::kReady &&
        table_.Drain(replica.id, {.even_pinned = true}).ok()) {
      LOG(ERROR) << "The packed file of " << artifact_id
                 << " was removed or replaced by somebody else: it is no longer offered";
    }
  }
  options_.artifact_store->CloseLost(artifact_id);
}

std::vector<ReplicaInfo> EngineImpl::ListReplicas() const { return table_.List(); }

absl::StatusOr<std::shared_ptr<const Manifest>> EngineImpl::FindManifest(std::string_view artifact_id) const {
  return table_.FindManifest(artifact_id);
}

PoolStats EngineImpl::device_pool_stats(int device) const { return device_pool_.stats(device); }

int EngineImpl::active_ingests() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(jobs_.size());
}

bool EngineImpl::AwaitNoIngests(absl::Time deadline) const {
  auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return jobs_.empty(); };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&none), TimeLeft(deadline));
}

std::vector<TransferReport> EngineImpl::RunningTransfers() const {
  std::vector<JobPtr> jobs;
  {
    absl::MutexLock lock(&mutex_);
    jobs.assign(jobs_.begin(), jobs_.end());
  }
  std::ranges::sort(jobs, {}, [](const JobPtr& job) { return job->queued(); });
  std::vector<TransferReport> reports;
  reports.reserve(jobs.size());
  for (const JobPtr& job : jobs) reports.push_back(job->ReportSoFar());
  return reports;
}

int EngineImpl::queued_ingests() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(queue_.size());
}

}  // namespace tensorcast
