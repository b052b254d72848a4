// Provides what an ingest needs to advance a replica (advance.h): the memory of the earlier version as its
// destination, buffers in which to make chunks, and a source of the chunks that stay. The replica is in host
// memory or on a GPU.
//
// Thread-safe.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/device/direct_copies.h"
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
  ReplicaTable* table = nullptr;  // all pointers must outlive the advancer
  HostPool* pool = nullptr;
  EvictingAllocator* allocator = nullptr;
  const ReplicaRetirement* retirement = nullptr;
  StagingRing* staging = nullptr;  // used if its buffers are large enough
  DeviceRuntime* devices = nullptr;
  DirectCopies* direct = nullptr;
  int copy_threads = 1;
};

class ReplicaAdvancer {
 public:
  explicit ReplicaAdvancer(const ReplicaAdvancerOptions& options) : options_(options) {}

  // Returns the destination that writes over the earlier version. Without a gate, first retires the earlier
  // version and begins `request.advance`. With a gate, the destination retires the earlier version in Finish.
  //
  // If null is returned, the image needs new memory. Null if the request has no advance. Also null, with the
  // reason in `progress`, if an advance that is not required fails, or if a required advance without a gate
  // finds no earlier version.
  //
  // Errors of a required advance: FAILED_PRECONDITION, RESOURCE_EXHAUSTED (no room for a buffer),
  // UNAVAILABLE, and with a gate NOT_FOUND. CANCELLED or DEADLINE_EXCEEDED if the context ends.
  //
  // `space` is the request for the image's new memory; buffers use its context, too. `partial`: this node
  // already has a partial replica of the wanted version.
  absl::StatusOr<std::unique_ptr<Destination>> TakeBase(const IngestRequest& request,
                                                        const AllocationRequest& space, bool partial,
                                                        ProgressTracker& progress) const;
  // FindStayingChunks (staying_chunks.h). REQUIRES: the advance has begun, or has a gate.
  std::unique_ptr<NodeProvider> ChunksThatStay(const IngestRequest& request, ProgressTracker& progress) const;

 private:
  absl::StatusOr<std::unique_ptr<Destination>> Take(const IngestRequest& request,
                                                    const AllocationRequest& space, bool partial) const;
  // The destination of an advance with a gate: `retirement` retires the base at the end.
  std::unique_ptr<Destination> MakeCommitting(const IngestRequest& request, const AllocationRequest& space,
                                              std::shared_ptr<const ReplicaLease> base,
                                              RetirementRequest retirement, StagingRing* staging,
                                              std::unique_ptr<StagingRing> own,
                                              std::unique_ptr<StagingRing> reads) const;
  // True if this pool made all segments of the memory, so that this process may write to the memory. (Two
  // replicas never share memory.)
  bool IsOwn(const HostAllocation& memory) const;
  // Buffers for one ingest: several if the pool has room, else one, for which replicas may be evicted.
  absl::StatusOr<std::unique_ptr<StagingRing>> MakeBuffers(uint64_t bytes,
                                                           const AllocationRequest& space) const;

  const ReplicaAdvancerOptions options_;
};

}  // namespace tensorcast
