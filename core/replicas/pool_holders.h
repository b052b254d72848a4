// Counts the replicas and bytes of a pool by the reason that keeps them. A request for memory uses the counts
// to decide whether to evict or to wait, and to write its error.
//
// Value types; the table fills them in under its mutex.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replicas/replica_record.h"

namespace tensorcast {

// The holders of one pool: host memory, the disk, or one device.
struct PoolHolders {
  struct Share {
    int replicas = 0;
    uint64_t bytes = 0;  // whole granules
  };
  Share leased;  // includes draining and failed replicas until their leases end
  Share pinned;  // pinned and not leased
  Share filling;
  // The part of `filling` that has all its memory. These replicas can be evicted when they are ready, unless
  // a client then holds them.
  Share landing;
  Share idle;    // can be evicted; includes partial replicas
  Share served;  // partial replicas with only leases of LeaseOf::kToServe; they can be evicted, too
  // The part of `leased` with readers that were told to stop: the memory becomes free soon.
  Share ending;
  Share partial;         // all partial replicas; also counted in the fields above
  bool freeing = false;  // the memory of a gone replica is being freed
  // True while memory may soon become free without another eviction, because `freeing` is true, `ending` has
  // replicas, the guard is being asked about a replica, or a cancelled ingest is about to end.
  bool in_flux = false;

  // Add counts a replica of the table; AddFailed counts a failed replica that is still leased.
  void Add(const ReplicaRecord& record, SteadyTime now);
  void AddFailed(const ReplicaRecord& record, SteadyTime now);

 private:
  void AddIfEnding(const ReplicaRecord& record, SteadyTime now);
};

// A reader that was told to stop and has not stopped after this time counts like any other reader.
inline constexpr absl::Duration kTimeToStop = absl::Seconds(10);

}  // namespace tensorcast
