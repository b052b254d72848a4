// Takes one ingest from its place in the queue to its end: space, sources, pipeline, manifest, ready replica,
// report.
//
// Thread-safe: the engine's threads run one job each. All pointers must outlive it.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/disk/artifact_store.h"
#include "core/engine/destination.h"
#include "core/engine/ingest_job.h"
#include "core/engine/name_locks.h"
#include "core/engine/replica_table.h"
#include "core/engine/evicting_allocator.h"
#include "core/engine/staging_ring.h"

namespace tensorcast {

struct IngestTools {
  ReplicaTable* table = nullptr;
  Space* space = nullptr;
  StagingRing* staging = nullptr;
  DevicePool* device_pool = nullptr;
  DeviceRuntime* devices = nullptr;         // may be null
  ArtifactStore* artifact_store = nullptr;  // may be null
  NameLocks* disk_names = nullptr;          // artifact ids whose packed file appears or goes
  int copy_threads = 1;
};

class IngestRunner {
 public:
  explicit IngestRunner(const IngestTools& tools) : tools_(tools) {}

  // Whether such an ingest could ever run here; found out before it is queued.
  absl::Status Check(const IngestSpec& spec) const;

  struct Result {
    absl::StatusOr<std::unique_ptr<ReplicaLease>> lease;
    TransferReport report;
  };
  // REQUIRES: the job's replica is in the table, allocating. Afterwards it is ready or out of the table.
  Result Run(IngestJob& job, const std::function<void(bool waiting)>& on_wait);

 private:
  // What only the pipeline knows, at its end.
  struct AtTheEnd {
    uint32_t verified_chunks = 0;
    uint32_t refetched_chunks = 0;
    std::vector<SourceChange> changes;
  };

  absl::StatusOr<std::unique_ptr<ReplicaLease>> Make(IngestJob& job, const std::function<void(bool)>& on_wait,
                                                     AtTheEnd& ended);
  absl::Status Fill(IngestJob& job, const std::function<void(bool)>& on_wait, Destination& destination,
                    AtTheEnd& ended, std::vector<Digest>& digests);
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Publish(IngestJob& job, Destination& destination,
                                                        std::shared_ptr<const Manifest> manifest);
  absl::StatusOr<std::unique_ptr<Destination>> MakeDestination(IngestJob& job,
                                                               const std::function<void(bool)>& on_wait);
  absl::StatusOr<std::unique_ptr<PackedWriter>> CreateFile(const IngestSpec& spec) const;

  const IngestTools tools_;
};

}  // namespace tensorcast
