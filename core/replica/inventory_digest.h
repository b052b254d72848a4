// A node and the global store compare inventory digests to check that they list the same replicas. The digest
// is a sum modulo 2^64. Each ready or partial replica adds the XXH3-64 (https://github.com/Cyan4973/xxHash)
// of its id. Pure; thread-safe.
#pragma once

#include <cstdint>

#include "core/replica/replica.h"

namespace tensorcast {

// The replica's part of the sum; 0 for a replica in another state or without an artifact id.
uint64_t InventoryDigestOf(const ReplicaInfo& replica);

}  // namespace tensorcast
