// Summarises what holds a pool's memory: replicas and their bytes, by the reason that keeps them. It tells a
// request for room whether eviction could make room, whether memory comes back by itself, and what a message
// to people should say.
//
// Values; the table fills them in under its mutex.
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
  Share leased;  // leased; includes draining and failed replicas until their leases end
  Share pinned;  // pinned and not leased
  Share filling;
  // The part of `filling` that has all its memory. These replicas can be evicted after they are made, unless
  // a client holds them then.
  Share landing;
  Share idle;    // can be evicted; includes partial replicas
  Share served;  // partial replicas with only readers that stop on eviction: can be evicted, too
  // The part of `leased` that is to go: the readers were told to stop, and the memory comes back soon.
  Share ending;
  Share partial;         // with or without a holder
  bool freeing = false;  // the memory of a gone replica is being freed now
  bool in_flux = false;  // memory is coming back by itself: `freeing`, `ending`, a guard is
                         // asked, an ingest winds up

  // Add counts a replica of the table; AddFailed counts a failed replica that is still leased.
  void Add(const ReplicaRecord& record, SteadyTime now);
  void AddFailed(const ReplicaRecord& record, SteadyTime now);

 private:
  void AddIfEnding(const ReplicaRecord& record, SteadyTime now);
};

// A reader that was told to stop and has not stopped after this time holds the replica like any other reader.
inline constexpr absl::Duration kTimeToStop = absl::Seconds(10);

}  // namespace tensorcast
