// The NUMA node that pages of shared memory come from (mbind(2)). Best effort: where it has none left they
// come from another, and on a host with one node nothing changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tensorcast {

// For the pages that this mapping of a memfd has none of yet, whichever thread touches them first, in any
// process. What fails is logged. Thread-safe.
void PreferNumaNode(std::byte* base, uint64_t bytes, int node);

// What PreferNumaNode said of the page at `address`, or nothing.
std::optional<int> PreferredNumaNode(const std::byte* address);

}  // namespace tensorcast
