// Buffers of the host pool through which bytes pass on their way between a device or a file and elsewhere,
// and which of them are free. Thread-compatible.
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
  // `count` may be 0. Where the devices are of several NUMA nodes, the buffers lie near them in turn.
  // RESOURCE_EXHAUSTED when they do not fit in the pool, which must outlive them.
  static absl::StatusOr<StagingMemory> Create(HostPool* pool, int count, uint64_t bytes,
                                              const NumaNodes& numa_nodes = {});

  int count() const { return static_cast<int>(buffers_.size()); }
  bool has_free() const { return !free_.empty(); }
  // One near the device if there is one: another one now is better than a wait. REQUIRES: has_free().
  const HostAllocation* Take(std::optional<int> device);
  // REQUIRES: it was taken.
  void GiveBack(const HostAllocation* buffer);

 private:
  std::optional<int> NodeOf(const HostAllocation* buffer) const { return nodes_[buffer - buffers_.data()]; }

  NumaNodes numa_nodes_;
  std::vector<HostAllocation> buffers_;      // fixed once created
  std::vector<std::optional<int>> nodes_;    // near which each lies, where that makes a difference
  std::vector<const HostAllocation*> free_;  // the one that was used last is the last
};

}  // namespace tensorcast
