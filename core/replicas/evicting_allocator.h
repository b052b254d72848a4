// Allocates memory for a new replica. Takes free memory of the pool; else evicts the least recently used
// replicas that may go; else waits for holders to end; else fails with a message that says what holds the
// pool. Partial replicas are evicted first, without asking the guard, because they are not copies. Partial
// replicas that other nodes or other ingests of this node are reading go last: their readers must find
// another source, and the allocator waits until the readers have stopped.
//
// Thread-safe. Blocks while the eviction guard is asked and, if requested, until there is space.
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
  std::string subject;  // for messages, what the memory is for: an artifact id, or "a new artifact"
  uint64_t bytes = 0;
  uint64_t held_bytes = 0;    // bytes that the replica has already, and keeps meanwhile
  bool await_ingests = true;  // for replicas that are being made and can be evicted then; false where one of
                              // them waits for this request
  bool wait = false;  // for leases to end, to the context's deadline; for what fills, and for what the
                      // guard says is about to end, it waits anyway
  // Gives the current context: a caller that joins an ingest may extend its deadline.
  std::function<RequestContext()> context;
  // Called with the reason of each wait, and with an empty text at its end, so that an ingest that only waits
  // does not count as running. May be null.
  WaitObserver on_wait;
};

class EvictingAllocator {
 public:
  // All must outlive this; `guard` may be null. `reserved_host_bytes` is the memory of the staging buffers,
  // which never becomes free.
  EvictingAllocator(ReplicaTable* table, HostPool* host, DevicePool* devices, EvictionGuard* guard,
                    uint64_t reserved_host_bytes);

  // `allocate` takes request.bytes of the pool. RESOURCE_EXHAUSTED when there is no room; UNAVAILABLE when
  // the guard cannot decide now whether room can be made; CANCELLED, DEADLINE_EXCEEDED.
  absl::StatusOr<HostAllocation> AllocateHost(
      const AllocationRequest& request,
      absl::FunctionRef<absl::StatusOr<HostAllocation>(HostPool& pool)> allocate);
  absl::StatusOr<DeviceBlock> AllocateDevice(int device, const AllocationRequest& request);

 private:
  // Idle replicas that must stay. The guard is not asked about `ids` again for a while.
  struct Refusals {
    std::set<std::string> ids;
    std::map<std::string, PoolHolders::Share> reasons;  // the guard's reasons, and the memory that each keeps
    absl::Status not_asked;                             // why the guard could not decide about one of them
    std::string awaited;  // the operation that must end before one of them may go; empty: none
  };
  template <typename Memory>
  absl::StatusOr<Memory> AllocateIn(Location pool, const AllocationRequest& request,
                                    absl::FunctionRef<absl::StatusOr<Memory>()> allocate);
  // False when there is no replica left to ask about. Adds replicas that must stay to `refused`. `needed_by`
  // is the span that needs the room; the eviction's span has its own trace and links to it.
  bool TryEvictOne(Location pool, const TraceContext& needed_by, Refusals& refused);
  // True when eviction could make enough room, and the replicas evicted so far do not.
  bool WorthEvicting(Location pool, uint64_t bytes) const;
  // True when there will be enough room after the replicas that are being made now can be evicted, provided
  // that no client holds them then.
  bool WillHaveRoom(Location pool, uint64_t bytes) const;
  // The bytes of the pool that an image of `image_bytes` takes.
  uint64_t BytesFor(Location pool, uint64_t image_bytes) const;
  PoolStats Stats(Location pool) const;
  uint64_t UsableBytes(Location pool) const;
  absl::Status Full(Location pool, const AllocationRequest& request, const absl::Status& cause,
                    const Refusals& refused) const;

  ReplicaTable* const table_;
  HostPool* const host_;
  DevicePool* const devices_;
  EvictionGuard* const guard_;
  const uint64_t reserved_host_bytes_;
};

}  // namespace tensorcast
