// The destinations of an advance (advance.h): the new image is written over the base, an earlier version in
// the same memory. Each chunk is made in a staging buffer.
//
//   advancing:   Place writes a chunk over the old one
//   committing:  Place compares a chunk with the base and keeps what differs; Finish writes all differences
//                when the holders of the base have committed
//
// Threading and errors: as any Destination. Until Finish of a committing destination retires the base, an
// error leaves the base unchanged.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/ingest/advance.h"
#include "core/ingest/destination.h"
#include "core/ingest/scatter_plan.h"
#include "core/ingest/staging_ring.h"
#include "core/memory/host_pool.h"
#include "core/replicas/replica_lease.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

// The buffers of a destination.
struct DestinationBuffers {
  StagingRing* staging = nullptr;    // must outlive the destination, unless it is `own`
  std::unique_ptr<StagingRing> own;  // buffers of the destination alone; null: `staging` is shared
};

// For a base in host memory. REQUIRES: the base is retired, so that no process expects its bytes.
std::unique_ptr<Destination> MakeAdvancingDestination(std::shared_ptr<const HostAllocation> memory,
                                                      DestinationBuffers buffers);

struct CommitOptions {
  std::shared_ptr<Advance> advance;  // with a gate
  std::shared_ptr<const ReplicaLease> base;
  std::function<void()> wake;  // called when the holders may commit
  // Retires `base` when all leases on `base` belong to holders in the gate. An error leaves it unchanged.
  std::function<absl::StatusOr<RetiredReplica>()> retire;
  ScatterPlan::Allocate allocate;
  int threads = 1;
  DeviceRuntime* devices = nullptr;  // must outlive the destination
  // The buffers in which to read a base on a GPU; null if the base is in host memory.
  std::unique_ptr<StagingRing> reads;
};
// For a base that processes hold by live leases, in host memory or on a GPU.
std::unique_ptr<Destination> MakeCommittingDestination(CommitOptions options, DestinationBuffers buffers);

}  // namespace tensorcast
