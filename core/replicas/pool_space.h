// Tells requests for memory when to try again, and counts evictions.
//
// A gone replica leaves the table before its memory is free. IsFreeing is true for the pool until the memory
// is free. An event is a moment after which there may be more space: a replica's memory was freed, a lease or
// a pin ended, or a replica became evictable. A request for memory reads events(), tries to allocate, and
// then calls AwaitEvent.
//
// Thread-safe. Lock order: the table's mutex comes before the mutex of this object.
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

  void NoteChance();  // counts an event
  uint64_t events() const;
  // Blocks until events() differs from `seen`, or until the context ends.
  void AwaitEvent(uint64_t seen, const RequestContext& context) const;

  // Counts a replica that left a pool, by the reason (tc_pool_evictions_total).
  void CountEviction(Location pool, std::string_view reason);
  uint64_t evictions(Location pool) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<Location, int> freeing_ ABSL_GUARDED_BY(mutex_);
  std::map<Location, uint64_t> evictions_ ABSL_GUARDED_BY(mutex_);
  uint64_t events_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast
