// The queue of the ingests of a node, and the threads that run them: first come, first served, at most
// `max_running` at a time. A job that waits for space, for a source or for chunks does not count as running.
// So there can be more than `max_running` threads.
//
// A place is an artifact and a location. At most one ingest works on a place. A request joins the ingest of
// its place if that ingest brings all wanted chunks and is not being cancelled. A request that cannot join
// becomes a job that waits for the place. This job is queued when the previous job is done with the replica,
// and continues from that replica (ReplicaTable::TakeOver).
//
// The queue makes a thread when a job needs a thread, and keeps the thread until Stop. A waiting job that
// continues is not queued again, even if more than `max_running` jobs then run for a time.
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
  // All pointers must outlive the queue. About `max_running` jobs run at a time (see above).
  IngestQueue(ReplicaTable* table, const IngestRunner* runner, ReplicaRemoval* removal, Notifier* notifier,
              int max_running);
  ~IngestQueue() { Stop(); }
  IngestQueue(const IngestQueue&) = delete;
  IngestQueue& operator=(const IngestQueue&) = delete;
  // Cancels every ingest and waits for the threads. Later requests are CANCELLED.
  void Stop();

  // Returns a replica that is ready or has the wanted chunks. If there is none, joins or starts an ingest. A
  // new artifact always gets a new ingest. Ignores existing replicas if the advance has a gate (advance.h).
  // RESOURCE_EXHAUSTED if the queue cannot start its first thread. Also errors of IngestRunner::Check.
  absl::StatusOr<std::unique_ptr<PendingReplica>> Request(const RequestContext& context,
                                                          IngestRequest request);
  // Cancels the ingests of a deleted artifact. A replica that such an ingest still completes is removed.
  void Forget(std::string_view artifact_id);

  int active() const;        // running, waiting and queued ingests
  int queued() const;        // ingests that have not begun to run
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
