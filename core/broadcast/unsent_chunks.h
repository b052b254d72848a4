// What a replica that is broadcast has and was not sent yet: it may fill meanwhile.
//
// One thread sends; Stop may come from any.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/byte_range.h"
#include "base/steady_time.h"
#include "core/artifact/layout.h"
#include "core/replica/availability.h"
#include "core/replicas/replica_lease.h"

namespace tensorcast {

class UnsentChunks {
 public:
  // `root` must outlive it.
  explicit UnsentChunks(const ReplicaLease* root);

  bool empty() const { return count_ == 0; }
  // Takes some, ascending, not more than is good to send at once. Blocks until there are any: to the deadline
  // (DEADLINE_EXCEEDED), Stop (UNAVAILABLE), or the end of what fills the replica, with its error.
  // REQUIRES: !empty().
  absl::StatusOr<std::vector<uint32_t>> Take(SteadyTime deadline);
  void Stop();

 private:
  const ReplicaLease* const root_;
  std::vector<bool> sent_;
  uint32_t count_;
  absl::Mutex mutex_;
  bool news_ ABSL_GUARDED_BY(mutex_) = true;  // the root may have more
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Availability::Watch watch_;  // last: it uses the rest
};

// Where chunks lie in the image; neighbours are one range. `chunks` ascend.
std::vector<ByteRange> RangesOf(const ImageLayout& layout, const std::vector<uint32_t>& chunks);
// The way back. INVALID_ARGUMENT for ranges that are not whole chunks.
absl::StatusOr<std::vector<uint32_t>> ChunksOf(const ImageLayout& layout,
                                               const std::vector<ByteRange>& ranges);

}  // namespace tensorcast
