// What an ingest needs to advance a replica (advance.h): the memory of the earlier version as its
// destination, buffers to make chunks in, and the chunks that stay as they are as a source.
//
// Thread-safe.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ingest/destination.h"
#include "core/ingest/ingest_request.h"
#include "core/ingest/progress.h"
#include "core/ingest/provider_chain.h"
#include "core/ingest/staging_ring.h"
#include "core/memory/host_pool.h"
#include "core/replicas/evicting_allocator.h"
#include "core/replicas/replica_retirement.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

struct ReplicaAdvancerOptions {
  ReplicaTable* table = nullptr;  // all must outlive the advancer
  HostPool* pool = nullptr;
  EvictingAllocator* allocator = nullptr;
  const ReplicaRetirement* retirement = nullptr;
  StagingRing* staging = nullptr;  // used where it has buffers that are large enough
  int copy_threads = 1;
};

class ReplicaAdvancer {
 public:
  explicit ReplicaAdvancer(const ReplicaAdvancerOptions& options) : options_(options) {}

  // Retires the earlier version and begins `request.advance`. Null: it is not advanced, for a reason that
  // `progress` tells, and the image needs memory of its own. An error where an advance is required:
  // FAILED_PRECONDITION, RESOURCE_EXHAUSTED (no room for a buffer), UNAVAILABLE. `space`: as for that memory.
  // `partial`: a part of the wanted version is here already.
  absl::StatusOr<std::unique_ptr<Destination>> TakeBase(const IngestRequest& request,
                                                        const AllocationRequest& space, bool partial,
                                                        ProgressTracker& progress) const;
  // The chunks that are equal in both versions, in their place. Null where there are none, which `progress`
  // is told. REQUIRES: the advance has begun.
  std::unique_ptr<NodeProvider> ChunksThatStay(const IngestRequest& request, ProgressTracker& progress) const;

 private:
  absl::StatusOr<std::unique_ptr<Destination>> Take(const IngestRequest& request,
                                                    const AllocationRequest& space, bool partial) const;
  // Whether this process may write to it: all lies in segments that this pool made. Nothing else names its
  // granules: replicas share none with each other.
  bool IsOwn(const HostAllocation& memory) const;
  // `own` is set where the shared buffers cannot be used.
  absl::StatusOr<StagingRing*> FindBuffers(const ImageLayout& layout, const AllocationRequest& space,
                                           std::unique_ptr<StagingRing>& own) const;

  const ReplicaAdvancerOptions options_;
};

}  // namespace tensorcast
