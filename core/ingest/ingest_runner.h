// Runs one ingest: finds space and sources, runs the pipeline, makes the manifest and the ready replica, and
// reports.
//
// Thread-safe: each thread of the queue runs one job.
#pragma once

#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/broadcast/fan_out.h"
#include "core/broadcast/wide_broadcasts.h"
#include "core/device/device_runtime.h"
#include "core/device/direct_copies.h"
#include "core/device/numa.h"
#include "core/disk/artifact_store.h"
#include "core/ingest/device_verification.h"
#include "core/ingest/ingest_job.h"
#include "core/ingest/replica_advancer.h"
#include "core/ingest/staging_ring.h"
#include "core/replicas/evicting_allocator.h"
#include "core/replicas/kept_replicas.h"
#include "core/replicas/name_locks.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

// All pointers must outlive the runner.
struct IngestRunnerOptions {
  ReplicaTable* table = nullptr;
  EvictingAllocator* allocator = nullptr;
  KeptReplicas* kept = nullptr;
  const ReplicaAdvancer* advancer = nullptr;
  StagingRing* staging = nullptr;
  DeviceRuntime* devices = nullptr;  // may be null
  DirectCopies* direct = nullptr;
  ArtifactStore* artifact_store = nullptr;  // may be null
  NameLocks* disk_names = nullptr;          // locks artifact ids while their packed file is made or removed
  FanOut* fan_out = nullptr;
  WideBroadcasts* wide_broadcasts = nullptr;
  int copy_threads = 1;
  NumaNodes numa_nodes = {};
  DeviceVerification device_verification = DeviceVerification::kFull;
  bool distrust_other_hosts = false;
  absl::Duration peer_timeout = absl::InfiniteDuration();
};

class IngestRunner {
 public:
  explicit IngestRunner(const IngestRunnerOptions& options) : options_(options) {}

  // An error if this node can never run such an ingest. Called before the ingest is queued.
  absl::Status Check(const IngestRequest& request) const;

  struct Result {
    absl::StatusOr<std::unique_ptr<ReplicaLease>> lease;
    TransferReport report;
  };
  // Runs the job. Calls `on_wait` at the beginning and at the end of each wait for space, a source or chunks.
  // Calls `on_settled` once, when the replica is ready or partial, or has left the table. REQUIRES: the job's
  // replica is in the table, allocating or taken over.
  Result Run(IngestJob& job, const std::function<void(bool waiting)>& on_wait,
             absl::FunctionRef<void()> on_settled) const;

 private:
  const IngestRunnerOptions options_;
};

}  // namespace tensorcast
