// The unfinished ingests of a node and the threads that run them: first come, first served, at most
// `max_running` at a time. A job that only waits (for space, for a source, or for chunks that no source has
// yet) gives its turn to the next job, so there can be more than `max_running` threads.
//
// A request for a replica that an ingest is making joins that ingest if the ingest brings all wanted chunks.
// One lock covers the decision whether the replica is ready, being made, or must be made, so two ingests
// never work on the same artifact and location (a place). A request that cannot join, because the ingest
// brings other chunks or is being cancelled, becomes a job that waits for the place. The job is queued when
// the previous job is done with the replica, and continues from that replica (ReplicaTable::TakeOver).
//
// Threads are made when they are needed, and are then kept; a thread without a job is idle. If the first
// thread cannot be started, the queue accepts no job, because no thread would run the job. A job that begins
// to wait no longer counts in `running_`, and a thread is made for a queued job if none is idle. When the job
// continues, it counts again at once, even if more than `max_running_` jobs then run for a time. So a waiting
// job never blocks another job, and never queues a second time.
//
// Thread-safe. Lock order: the queue's mutex comes before the mutexes of the jobs, the table and the
// notifier.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/ingest/ingest_job.h"
#include "core/ingest/ingest_runner.h"
#include "core/ingest/pending_replica.h"
#include "core/replicas/notifier.h"
#include "core/replicas/replica_removal.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

class IngestQueue {
 public:
  // All pointers must outlive the queue. At most `max_running` jobs run, not counting jobs that wait.
  IngestQueue(ReplicaTable* table, const IngestRunner* runner, ReplicaRemoval* removal, Notifier* notifier,
              int max_running);
  ~IngestQueue() { Stop(); }
  IngestQueue(const IngestQueue&) = delete;
  IngestQueue& operator=(const IngestQueue&) = delete;
  // Cancels every ingest and waits for the threads. Later requests are CANCELLED.
  void Stop();

  // Returns a replica that is ready or has the wanted chunks; else joins the ingest that makes it; else
  // starts a new ingest. For a new artifact it always starts a new ingest. RESOURCE_EXHAUSTED if the queue
  // has no thread yet and none can be started.
  absl::StatusOr<std::unique_ptr<PendingReplica>> Request(const RequestContext& context,
                                                          IngestRequest request);
  // Cancels the ingests of a deleted artifact. If an ingest makes its replica in spite of this, the replica
  // is removed.
  void Forget(std::string_view artifact_id);

  int active() const;        // running, waiting and queued ingests
  int queued() const;        // ingests that wait for their turn or their place
  int peer_sources() const;  // sources on other nodes that ingests read now
  // Waits until there is no ingest; false if the deadline came first.
  bool AwaitNone(SteadyTime deadline) const;
  // The reports so far of all active ingests, in the order of their requests.
  std::vector<TransferReport> Reports() const;

 private:
  using JobPtr = std::shared_ptr<IngestJob>;
  using JobKey = std::pair<std::string, Location>;  // artifact id, location: a place

  absl::StatusOr<JobPtr> Enqueue(IngestRequest request, const RequestContext& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobPtr JoinAny(const IngestRequest& request, SteadyTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Brings(const IngestJob& job, const IngestRequest& request) const;
  // Queues a job that has its place.
  void Admit(const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Called when the job is done with its replica: gives the place to the next job.
  void LeavePlace(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartThreads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ThreadLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  JobPtr NextJob() ABSL_LOCKS_EXCLUDED(mutex_);  // null: the queue stops
  void RunJob(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountWaiting(bool waiting) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<JobPtr> Jobs() const ABSL_LOCKS_EXCLUDED(mutex_);

  ReplicaTable* const table_;
  const IngestRunner* const runner_;
  ReplicaRemoval* const removal_;
  Notifier* const notifier_;
  const size_t max_running_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<JobPtr> queue_ ABSL_GUARDED_BY(mutex_);
  std::set<JobPtr> jobs_ ABSL_GUARDED_BY(mutex_);  // jobs that have not ended
  // Jobs for known artifacts: the first job of each place is queued or runs, the others wait for the place.
  std::map<JobKey, std::deque<JobPtr>> places_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // jobs that run and do not wait
  size_t idle_threads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
