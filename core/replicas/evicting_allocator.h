// Allocates memory for a new replica. In this order, the allocator takes free memory of the pool, evicts the
// least recently used replicas that may be evicted, and waits for replicas in use. If there is still no room,
// the error says what holds the pool.
//
// Partial replicas without readers are evicted first. Partial replicas that other nodes or other ingests are
// reading are evicted last, and the allocator waits until the readers have stopped. A partial replica
// does not count as a copy, so the EvictionGuard is not asked about it.
//
// Thread-safe. Blocks while the guard decides and while memory is about to become free; if requested, blocks
// until there is space.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/memory/host_pool.h"
#include "core/replicas/callbacks.h"
#include "core/replicas/device_pool.h"
#include "core/replicas/pool_holders.h"
#include "core/replicas/replica_table.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

struct AllocationRequest {
  std::string subject;  // an artifact id, or "a new artifact"; names the purpose of the memory in messages
  uint64_t bytes = 0;
  uint64_t held_bytes = 0;  // memory that the replica already has and keeps
  // Whether to wait for replicas that are being filled and can be evicted afterwards. Set to false if the
  // memory is for a filling replica.
  bool await_ingests = true;
  // Whether to wait for leases and pins to end, until the context's deadline. Even if false, the request
  // waits for filling replicas (await_ingests) and for operations that end soon according to the guard.
  bool wait = false;
  // Returns the current context, because a caller that joins an ingest may extend its deadline.
  std::function<RequestContext()> context;
  // Called with the reason of each wait, and with an empty text at the wait's end. May be null.
  WaitObserver on_wait;
};

class EvictingAllocator {
 public:
  // All pointers must outlive this object; `guard` may be null. `reserved_host_bytes` is the memory of the
  // staging buffers, which never becomes free.
  EvictingAllocator(ReplicaTable* table, HostPool* host, DevicePool* devices, EvictionGuard* guard,
                    uint64_t reserved_host_bytes);

  // `allocate` allocates request.bytes from the pool. RESOURCE_EXHAUSTED if there is no room; UNAVAILABLE if
  // the guard cannot decide now about evictions; CANCELLED or DEADLINE_EXCEEDED if the context ends.
  // AllocateDevice also returns the errors of DevicePool::CheckDevice.
  absl::StatusOr<HostAllocation> AllocateHost(
      const AllocationRequest& request,
      absl::FunctionRef<absl::StatusOr<HostAllocation>(HostPool& pool)> allocate);
  absl::StatusOr<DeviceBlock> AllocateDevice(int device, const AllocationRequest& request);

 private:
  // Idle replicas that must stay. The guard is not asked again about `ids` for some time.
  struct Refusals {
    std::set<std::string> ids;
    std::map<std::string, PoolHolders::Share> reasons;  // the guard's reasons, and the memory kept for each
    absl::Status not_asked;                             // why the guard could not decide about a replica
    std::string awaited;  // the operation that must end before an eviction; empty: none
  };
  template <typename Memory>
  absl::StatusOr<Memory> AllocateIn(Location pool, const AllocationRequest& request,
                                    absl::FunctionRef<absl::StatusOr<Memory>()> allocate);
  // Tries one replica; false if none is left to try. Adds a replica that must stay to `refused`. `needed_by`:
  // trace span of the request that needs the room. The eviction has a trace of its own, linked to it.
  bool TryEvictOne(Location pool, const TraceContext& needed_by, Refusals& refused);
  // Whether to evict. False if evictions cannot make enough room, or if enough memory is becoming free.
  bool WorthEvicting(Location pool, uint64_t bytes) const;
  // Whether evictions will make enough room when the filling replicas are ready. Assumes that no client will
  // hold these replicas.
  bool WillHaveRoom(Location pool, uint64_t bytes) const;
  // The bytes of the pool that an image of `image_bytes` takes.
  uint64_t BytesFor(Location pool, uint64_t image_bytes) const;
  PoolStats Stats(Location pool) const;
  uint64_t UsableBytes(Location pool) const;
  // Whether an empty pool would have room for the request.
  bool CanEverFit(Location pool, const AllocationRequest& request) const;
  absl::Status Full(Location pool, const AllocationRequest& request, const absl::Status& cause,
                    const Refusals& refused) const;

  ReplicaTable* const table_;
  HostPool* const host_;
  DevicePool* const devices_;
  EvictionGuard* const guard_;
  const uint64_t reserved_host_bytes_;
};

}  // namespace tensorcast
