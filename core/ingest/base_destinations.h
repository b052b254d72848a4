// Destinations that write a new image over the base, an earlier version in the same memory (advance.h). Each
// chunk is made in a staging buffer.
//
//   advancing:   Place writes a chunk over the old chunk
//   committing:  Place keeps the values of a chunk that differ from the base; Finish writes all kept values
//                over the base when all holders of the base are in the gate
//
// The threading is that of any Destination. A committing destination retires the base in Finish. An error
// before the retirement leaves the base unchanged.
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
  std::unique_ptr<StagingRing> own;  // the owner of `staging`; null: other ingests use `staging`, too
};

// For a base in host memory. REQUIRES: the base is retired, so that no process expects its bytes.
std::unique_ptr<Destination> MakeAdvancingDestination(std::shared_ptr<const HostAllocation> memory,
                                                      DestinationBuffers buffers);

struct CommitOptions {
  std::shared_ptr<Advance> advance;  // an advance with a gate
  std::shared_ptr<const ReplicaLease> base;
  std::function<void()> wake;  // called when a holder enters the gate (CommitGate::Staged)
  // Waits until all leases on `base` belong to holders in the gate, and then retires `base`. An error leaves
  // `base` unchanged.
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
