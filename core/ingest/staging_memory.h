// Buffers in the host pool for bytes on their way to or from a device or a file; tells which of them are
// free. Thread-compatible.
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
  // `count` may be 0. If the devices belong to several NUMA nodes, the buffers lie near these nodes in turn.
  // RESOURCE_EXHAUSTED when the buffers do not fit in the pool. The pool must outlive them.
  static absl::StatusOr<StagingMemory> Create(HostPool* pool, int count, uint64_t bytes,
                                              const NumaNodes& numa_nodes = {});

  int count() const { return static_cast<int>(buffers_.size()); }
  bool has_free() const { return !free_.empty(); }
  // A free buffer near the device, else any free buffer, since a wait costs more. REQUIRES: has_free().
  const HostAllocation* Take(std::optional<int> device);
  // REQUIRES: `buffer` was taken.
  void GiveBack(const HostAllocation* buffer);

 private:
  std::optional<int> NodeOf(const HostAllocation* buffer) const { return nodes_[buffer - buffers_.data()]; }

  NumaNodes numa_nodes_;
  std::vector<HostAllocation> buffers_;      // fixed once created
  std::vector<std::optional<int>> nodes_;    // NUMA node of each buffer, if there are several nodes
  std::vector<const HostAllocation*> free_;  // the buffer that was used last comes last
};

}  // namespace tensorcast
