// The chunks of a broadcast replica that were not sent yet. The replica may still be filling.
//
// One thread takes and sends chunks; any thread may call Stop.
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
  // `root`: a lease on the replica; must outlive this object.
  explicit UnsentChunks(const ReplicaLease* root);

  // Whether all chunks were taken.
  bool empty() const { return count_ == 0; }
  // Takes the next chunks to send, at most about 64 MiB, in ascending order. Blocks until there are
  // any. DEADLINE_EXCEEDED at the deadline, UNAVAILABLE after Stop, or the error with which the replica's
  // availability ended. REQUIRES: !empty().
  absl::StatusOr<std::vector<uint32_t>> Take(SteadyTime deadline);
  // A running call of Take and all later calls return UNAVAILABLE.
  void Stop();

 private:
  const ReplicaLease* const root_;
  std::vector<bool> sent_;
  uint32_t count_;
  absl::Mutex mutex_;
  bool news_ ABSL_GUARDED_BY(mutex_) = true;  // the root may have more chunks
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Availability::Watch watch_;  // declared last: its observer uses the other members
};

// The ranges of the chunks in the image; adjacent ranges are joined. `chunks` must ascend.
std::vector<ByteRange> RangesOf(const ImageLayout& layout, const std::vector<uint32_t>& chunks);
// The inverse of RangesOf. INVALID_ARGUMENT for ranges that are not whole chunks.
absl::StatusOr<std::vector<uint32_t>> ChunksOf(const ImageLayout& layout,
                                               const std::vector<ByteRange>& ranges);

}  // namespace tensorcast
