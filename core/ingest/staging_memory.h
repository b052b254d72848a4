// Buffers in the host pool for bytes that are copied to a device or a file, and the list of free buffers.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/numa.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

class StagingMemory {
 public:
  StagingMemory() = default;
  // Makes `count` buffers of `bytes` bytes; `count` may be 0. If the devices belong to several NUMA nodes,
  // the buffers are distributed over these nodes. RESOURCE_EXHAUSTED if the buffers do not fit in the pool.
  // The pool must outlive this object.
  static absl::StatusOr<StagingMemory> Create(HostPool* pool, int count, uint64_t bytes,
                                              const NumaNodes& numa_nodes = {});

  int count() const { return static_cast<int>(buffers_.size()); }
  bool has_free() const { return !free_.empty(); }
  // Takes a free buffer near the device; if there is none, any free buffer. REQUIRES: has_free().
  const HostAllocation* Take(std::optional<int> device);
  // REQUIRES: `buffer` was taken.
  void GiveBack(const HostAllocation* buffer);

 private:
  std::optional<int> NodeOf(const HostAllocation* buffer) const { return nodes_[buffer - buffers_.data()]; }

  NumaNodes numa_nodes_;
  std::vector<HostAllocation> buffers_;      // fixed once created
  std::vector<std::optional<int>> nodes_;    // NUMA node of each buffer, if there are several nodes
  std::vector<const HostAllocation*> free_;  // the most recently used buffer is last
};

}  // namespace tensorcast
