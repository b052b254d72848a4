// The ingests of a node that have not ended, and the threads that run them: first come, first served, at most
// so many at once. One that only waits (for space, for a source, or for chunks that no source has yet) gives
// its turn to the next, so there can be more threads than that.
//
// A request for a replica that is being made joins its ingest, where that brings all that is wanted. Whether
// it is ready, being made or to be made is decided under one lock, so that there are never two ingests of one
// artifact at work on one location: a request that cannot join (the ingest brings other chunks, or is being
// cancelled) becomes a job that waits for its place. It is queued when the one before it is at the end of its
// replica, and goes on from what that one left (ReplicaTable::TakeOver).
//
// Threads are made as they are needed and stay: one that has no job is idle. A job that begins to wait takes
// itself out of `running_`, and another thread is made where one is needed for a queued job; when it goes on
// it counts again at once, though there be more running than `max_running_` until one of them ends. So what
// waits never keeps out what could run, and nothing that goes on has to queue a second time.
//
// Thread-safe. Its mutex comes before the jobs', the table's and the notifier's.
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
  // All pointers must outlive it. At most `max_running` do more than wait.
  IngestQueue(ReplicaTable* table, const IngestRunner* runner, ReplicaRemoval* removal, Notifier* notifier,
              int max_running);
  ~IngestQueue() { Stop(); }
  IngestQueue(const IngestQueue&) = delete;
  IngestQueue& operator=(const IngestQueue&) = delete;
  // Cancels every ingest and waits for the threads. Later requests are CANCELLED.
  void Stop();

  // The replica that is ready or has the chunks that are wanted, or a share in the ingest that makes it, or a
  // new ingest. Of a new artifact always the last.
  absl::StatusOr<std::unique_ptr<PendingReplica>> Request(const RequestContext& context,
                                                          IngestRequest request);
  // Cancels the ingests of an artifact that was deleted; what they made in spite of that goes when they end.
  void Forget(std::string_view artifact_id);

  int active() const;  // running, waiting and queued ones
  int queued() const;  // those among them that wait for their turn, or their place
  int peer_sources() const;
  // Waits until there is none; false when the deadline came first.
  bool AwaitNone(SteadyTime deadline) const;
  // Their reports so far, in the order in which they were asked for.
  std::vector<TransferReport> Reports() const;

 private:
  using JobPtr = std::shared_ptr<IngestJob>;
  using JobKey = std::pair<std::string, Location>;  // artifact id, where to

  absl::StatusOr<JobPtr> Enqueue(IngestRequest request, const RequestContext& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobPtr JoinAny(const IngestRequest& request, SteadyTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Brings(const IngestJob& job, const IngestRequest& request) const;
  // Its place is free: in line for a turn.
  void Admit(const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its replica is at its end: the next one has the place.
  void LeavePlace(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartThreads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  std::set<JobPtr> jobs_ ABSL_GUARDED_BY(mutex_);  // that have not ended
  // Those of known artifacts: the first of each place is queued or at work, the others wait for it.
  std::map<JobKey, std::deque<JobPtr>> places_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // that do more than wait
  size_t idle_threads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);  // as many as ever ran or waited at once
};

}  // namespace tensorcast
