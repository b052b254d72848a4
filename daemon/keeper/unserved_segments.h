// Segments of a previous daemon that processes still map, although not served: their replicas did not
// match, or the pool had no space for them. They are memory of the host all the same, so that the pool has
// as much less to give, until those processes end.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "core/memory/host_pool.h"
#include "daemon/keeper/attachments.h"
#include "daemon/keeper/keeper.h"

namespace tensorcast::daemon {

class UnservedSegments {
 public:
  struct Stats {
    uint64_t bytes = 0;
    uint32_t holders = 0;
  };

  // `keeper` must outlive it.
  explicit UnservedSegments(KeeperClient* keeper) : keeper_(keeper) {}

  // Those of `outside`, with their bytes, are not in `pool`; `room` is what it has less for them. To be
  // called first, once. `pool` must outlive this, or Stop.
  void Open(HostPool* pool, absl::flat_hash_map<std::string, uint64_t> outside,
            std::vector<HostAllocation> room);
  // REQUIRES: those of its segments that are in the pool are kept ones and something of them is adopted.
  void Add(Attachment holder);
  // Releases segments that no process maps any more. To be called now and then.
  void DropEnded();
  // Everything stays as it is, for the next daemon.
  void Stop();
  Stats stats() const;

 private:
  uint64_t OutsideBytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  KeeperClient* const keeper_;
  mutable absl::Mutex mutex_;
  HostPool* pool_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<Attachment> holders_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, HostAllocation> inside_ ABSL_GUARDED_BY(mutex_);  // whole segments
  absl::flat_hash_map<std::string, uint64_t> outside_ ABSL_GUARDED_BY(mutex_);
  std::vector<HostAllocation> room_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
