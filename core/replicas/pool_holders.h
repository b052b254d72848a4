// What holds a pool: replicas and their bytes by what keeps them there. So a request for room knows whether
// eviction could make it, whether some is coming back by itself, and what to tell people.
//
// Values; the table fills them in under its mutex.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replicas/replica_record.h"

namespace tensorcast {

// Of one pool: host memory, the disk, or one device.
struct PoolHolders {
  struct Share {
    int replicas = 0;
    uint64_t bytes = 0;  // whole granules
  };
  Share leased;  // or draining, or failed, until its leases end
  Share pinned;  // and not leased
  Share filling;
  // Of the filling ones: they have all their memory, and could be evicted when they are made, unless a client
  // holds them then.
  Share landing;
  Share idle;    // could be evicted; partial ones, too
  Share served;  // partial, and all its readers stop when it is to go: could be evicted, too
  // Of the leased ones: they are to go, and their readers were told to stop. Their memory comes back soon.
  Share ending;
  Share partial;         // with or without a holder
  bool freeing = false;  // the memory of one that is gone is being freed now
  bool in_flux = false;  // memory is coming back by itself: `freeing`, `ending`, a guard is
                         // asked, an ingest winds up

  // Counts one more: in the table; and one that failed and is leased yet.
  void Add(const ReplicaRecord& record, SteadyTime now);
  void AddFailed(const ReplicaRecord& record, SteadyTime now);

 private:
  void AddIfEnding(const ReplicaRecord& record, SteadyTime now);
};

// A reader that is told to stop when a replica is to go, and has not for so long, holds it like any other.
inline constexpr absl::Duration kTimeToStop = absl::Seconds(10);

}  // namespace tensorcast
