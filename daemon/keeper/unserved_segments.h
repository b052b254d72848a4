// Segments of a previous daemon that processes still map and this daemon does not serve. The pool gives out
// less memory, by the size of these segments, until the processes end.
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

  // `keeper` must outlive this object.
  explicit UnservedSegments(KeeperClient* keeper) : keeper_(keeper) {}

  // `outside` maps the names of segments outside `pool` to their sizes in bytes. `room`: allocations in
  // `pool` that reserve room for them. Call Open first, once. `pool` must live until Stop or the destructor.
  void Open(HostPool* pool, absl::flat_hash_map<std::string, uint64_t> outside,
            std::vector<HostAllocation> room);
  // Adds a process that maps unserved segments. REQUIRES: the process's segments in the pool are kept
  // segments (HostPool).
  void Add(Attachment holder);
  // Releases segments that no process maps. Call DropEnded periodically.
  void DropEnded();
  // Leaves everything as it is for the next daemon.
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
