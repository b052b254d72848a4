// Chooses the NUMA node of pages of shared memory (mbind(2)). Best effort: if the node has no free memory,
// pages come from another node. On a host with one NUMA node the functions have no effect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tensorcast {

// Sets the node for the pages of this memfd mapping that do not exist yet, for every process that maps the
// memfd. The first failure is logged. Thread-safe.
void PreferNumaNode(std::byte* base, uint64_t bytes, int node);

// The node that PreferNumaNode set for the page at `address`; nullopt if it set no node.
std::optional<int> PreferredNumaNode(const std::byte* address);

}  // namespace tensorcast
