// Private to the engine's sources: the queue of ingests and the threads that run them, on top of the replica
// table.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/engine/device_pool.h"
#include "core/engine/engine.h"
#include "core/engine/ingest_job.h"
#include "core/engine/ingest_runner.h"
#include "core/engine/name_locks.h"
#include "core/engine/notifier.h"
#include "core/engine/replica_table.h"
#include "core/engine/evicting_allocator.h"
#include "core/engine/staging_ring.h"

namespace tensorcast {

class EngineImpl final : public StoreEngine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<StagingRing> staging);
  ~EngineImpl() override;
  // Offers the packed files that are there already.
  void OfferPackedFiles();

  absl::StatusOr<std::unique_ptr<PendingReplica>> Materialize(const RequestContext& context,
                                                              MaterializeRequest request) override;
  absl::StatusOr<std::unique_ptr<PendingReplica>> Ingest(const RequestContext& context,
                                                         FirstIngestRequest request) override;
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseReplica(std::string_view replica_id) override;
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseArtifact(std::string_view artifact_id,
                                                              Location location) override;
  absl::Status Evict(std::string_view replica_id, bool force) override;
  absl::Status SetPinned(std::string_view replica_id, bool pinned) override;
  absl::Status Forget(std::string_view artifact_id, absl::Time as_of) override;
  void DropLostFiles() override;
  std::vector<ReplicaInfo> ListReplicas() const override;
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) const override;
  PoolStats device_pool_stats(int device) const override;
  int active_ingests() const override;
  bool AwaitNoIngests(absl::Time deadline) const override;
  int queued_ingests() const override;
  std::vector<TransferReport> RunningTransfers() const override;

 private:
  using JobPtr = std::shared_ptr<IngestJob>;
  using JobKey = std::pair<std::string, Location>;  // artifact id, where to

  absl::StatusOr<JobPtr> Enqueue(IngestSpec spec, const RequestContext& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartRunners() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunnerLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  JobPtr NextJob() ABSL_LOCKS_EXCLUDED(mutex_);  // null: the engine ends
  void RunJob(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountWaiting(bool waiting) ABSL_LOCKS_EXCLUDED(mutex_);
  void AbandonJobs(std::string_view artifact_id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropForgotten(const ReplicaInfo& replica);
  absl::Status RemovePackedFile(const std::string& artifact_id);
  void DropIfLost(const std::string& artifact_id);

  const EngineOptions options_;
  const std::unique_ptr<StagingRing> staging_;
  DevicePool device_pool_;
  std::unique_ptr<Notifier> notifier_;
  ReplicaTable table_;
  NameLocks disk_names_;
  Space space_;
  IngestRunner runner_;

  // Before the table's and the jobs' own.
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<JobPtr> queue_ ABSL_GUARDED_BY(mutex_);
  std::set<JobPtr> jobs_ ABSL_GUARDED_BY(mutex_);              // that have not ended
  std::map<JobKey, JobPtr> joinable_ ABSL_GUARDED_BY(mutex_);  // those of known artifacts
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;                 // that do more than wait for space
  size_t idle_runners_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> runners_ ABSL_GUARDED_BY(mutex_);  // as many as ever ran or waited at once
};

}  // namespace tensorcast
