// Tells requests for memory when to try again, and counts the replicas that went.
//
// A replica that is gone leaves the table before its memory is free. `freeing` counts it meanwhile, so that a
// request that finds no space knows that some is coming. Each moment at which there may be more space is an
// event: the memory of a replica is free, a lease or a pin ended, a replica can be evicted now. A request
// reads the count of events, tries, and then awaits the next event.
//
// Thread-safe. Its mutex is taken under the table's.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/replica/replica.h"

namespace tensorcast {

class PoolSpace {
 public:
  void BeginFreeing(Location pool);
  void EndFreeing(Location pool);  // the memory is free
  bool IsFreeing(Location pool) const;

  void NoteChance();  // an event
  uint64_t events() const;
  // Blocks until the count differs from `seen`, or the context ends.
  void AwaitEvent(uint64_t seen, const RequestContext& context) const;

  // A replica went from a pool, by why (tc_pool_evictions_total).
  void CountEviction(Location pool, std::string_view reason);
  uint64_t evictions(Location pool) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<Location, int> freeing_ ABSL_GUARDED_BY(mutex_);
  std::map<Location, uint64_t> evictions_ ABSL_GUARDED_BY(mutex_);
  uint64_t events_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast
