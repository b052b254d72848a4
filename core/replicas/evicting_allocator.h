// Memory for a new replica: from the pool as it is, else by evicting the least recently used replicas that
// may go, else by waiting for others to let go, else not at all, with a message that says what holds the
// pool. The guard is not asked about partial replicas: they are not copies. They go first, last of all those
// that other nodes, or other ingests of this one, read at the moment: these have to look elsewhere, and the
// memory is waited for until they have stopped.
//
// Thread-safe. Blocks while the eviction guard is asked and, if wanted, until there is space.
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
  std::string subject;  // what it is for, for messages: an artifact id, or "a new artifact"
  uint64_t bytes = 0;
  uint64_t held_bytes = 0;    // that the replica has already, and keeps meanwhile
  bool await_ingests = true;  // for replicas that are being made and can be evicted then; false where one of
                              // them waits for this request
  bool wait = false;  // for leases to end, to the context's deadline; for what fills, and for what the
                      // guard says is about to end, it waits anyway
  // The context as it is now: a caller that joins an ingest may extend its deadline.
  std::function<RequestContext()> context;
  // Told what each wait is for, and with an empty text that it has ended, so that an ingest that only waits
  // does not count as running. May be null.
  WaitObserver on_wait;
};

class EvictingAllocator {
 public:
  // All must outlive this; `guard` may be null. `reserved_host_bytes` never become free: the staging buffers.
  EvictingAllocator(ReplicaTable* table, HostPool* host, DevicePool* devices, EvictionGuard* guard,
                    uint64_t reserved_host_bytes);

  // RESOURCE_EXHAUSTED when it does not fit, UNAVAILABLE when the guard could not tell now whether room
  // can be made; CANCELLED, DEADLINE_EXCEEDED. `allocate` takes request.bytes of the pool.
  absl::StatusOr<HostAllocation> AllocateHost(
      const AllocationRequest& request,
      absl::FunctionRef<absl::StatusOr<HostAllocation>(HostPool& pool)> allocate);
  absl::StatusOr<DeviceBlock> AllocateDevice(int device, const AllocationRequest& request);

 private:
  // Replicas that stay, though they are idle. `ids` are not asked about again for a while.
  struct Refusals {
    std::set<std::string> ids;
    std::map<std::string, PoolHolders::Share> reasons;  // what the guard said, and of how much
    absl::Status not_asked;                             // why the guard could not find out, of one of them
    std::string awaited;  // what the guard said has to end before one of them may go; empty: nothing
  };
  template <typename Memory>
  absl::StatusOr<Memory> AllocateIn(Location pool, const AllocationRequest& request,
                                    absl::FunctionRef<absl::StatusOr<Memory>()> allocate);
  // False when there is no replica left to ask about. Replicas that must stay are added to `refused`.
  // `needed_by`: the span that wants the room; the eviction's, of a trace of its own, is linked to it.
  bool TryEvictOne(Location pool, const TraceContext& needed_by, Refusals& refused);
  // True when eviction could make enough room, and what was evicted already does not.
  bool WorthEvicting(Location pool, uint64_t bytes) const;
  // True when replicas that are being made now leave enough room once they are, if they have no holder then.
  bool WillHaveRoom(Location pool, uint64_t bytes) const;
  // What an image of so many bytes takes of the pool.
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
