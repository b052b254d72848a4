#include "core/ingest/staging_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "core/memory/numa_policy.h"

namespace tensorcast {

absl::StatusOr<StagingMemory> StagingMemory::Create(HostPool* pool, int count, uint64_t bytes,
                                                    const NumaNodes& numa_nodes) {
  const std::vector<int> nodes = DistinctNodes(numa_nodes);
  StagingMemory memory;
  memory.numa_nodes_ = numa_nodes;
  // A buffer shares its granules with no image.
  const uint64_t taken = std::max(bytes, kGranuleBytes);
  for (int i = 0; i < count; ++i) {
    TC_ASSIGN_OR_RETURN(HostAllocation buffer, nodes.empty()
                                                   ? pool->Allocate(taken)
                                                   : pool->AllocateNear(taken, nodes[i % nodes.size()]));
    // The node that was asked for is not always the one that has room: it is looked up.
    memory.nodes_.push_back(nodes.empty() ? std::nullopt
                                          : PreferredNumaNode(buffer.Spans(0, 1).front().data()));
    memory.buffers_.push_back(std::move(buffer));
  }
  // Only when all are there: these point into `buffers_`, which grows no more. A move of the whole keeps its
  // elements where they are.
  for (const HostAllocation& buffer : memory.buffers_) memory.free_.push_back(&buffer);
  return memory;
}

const HostAllocation* StagingMemory::Take(std::optional<int> device) {
  // The one that was given back last: its lines are likely to be in a cache.
  auto taken = std::prev(free_.end());
  if (const auto node = device.has_value() ? numa_nodes_.find(*device) : numa_nodes_.end();
      node != numa_nodes_.end()) {
    const auto near = std::ranges::find_if(
        free_, [this, &node](const HostAllocation* buffer) { return NodeOf(buffer) == node->second; });
    if (near != free_.end()) taken = near;
  }
  const HostAllocation* const buffer = *taken;
  free_.erase(taken);
  return buffer;
}

void StagingMemory::GiveBack(const HostAllocation* buffer) { free_.push_back(buffer); }

}  // namespace tensorcast
