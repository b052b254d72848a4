// Takes one ingest from its place in the queue to its end: space, sources, pipeline, manifest, ready replica,
// report.
//
// Thread-safe: the queue's threads run one job each.
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

// All must outlive the runner.
struct IngestRunnerOptions {
  ReplicaTable* table = nullptr;
  EvictingAllocator* allocator = nullptr;
  KeptReplicas* kept = nullptr;
  const ReplicaAdvancer* advancer = nullptr;
  StagingRing* staging = nullptr;
  DeviceRuntime* devices = nullptr;  // may be null
  DirectCopies* direct = nullptr;
  ArtifactStore* artifact_store = nullptr;  // may be null
  NameLocks* disk_names = nullptr;          // artifact ids with a packed file that appears or goes
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

  // Whether such an ingest could ever run here; found out before it is queued.
  absl::Status Check(const IngestRequest& request) const;

  struct Result {
    absl::StatusOr<std::unique_ptr<ReplicaLease>> lease;
    TransferReport report;
  };
  // `on_wait` is told when the job begins and ends to wait for space, a source or chunks; `on_settled` once,
  // when its replica is as the job leaves it. REQUIRES: the job's replica is in the table, allocating or
  // taken over. Afterwards it is ready, partial or out of the table.
  Result Run(IngestJob& job, const std::function<void(bool waiting)>& on_wait,
             absl::FunctionRef<void()> on_settled) const;

 private:
  const IngestRunnerOptions options_;
};

}  // namespace tensorcast
