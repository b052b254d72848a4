// Chooses the NUMA node of pages of shared memory (mbind(2)). Best effort: if the node has no free memory,
// pages come from another node. On a host with one node nothing changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tensorcast {

// Applies to the pages of this memfd mapping that do not exist yet. Any thread or process may touch them
// first. The first failure is logged. Thread-safe.
void PreferNumaNode(std::byte* base, uint64_t bytes, int node);

// The node that PreferNumaNode set for the page at `address`; nullopt: none.
std::optional<int> PreferredNumaNode(const std::byte* address);

}  // namespace tensorcast
