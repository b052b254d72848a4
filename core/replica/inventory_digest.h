// The inventory digest, which a node and the global store compare to check that they list the same replicas.
// It is the sum, modulo 2^64, of the XXH3-64 (https://github.com/Cyan4973/xxHash) of the id of each ready or
// partial replica. A new or removed replica changes the sum by one addition or subtraction. Pure;
// thread-safe.
#pragma once

#include <cstdint>

#include "core/replica/replica.h"

namespace tensorcast {

// The replica's part of the sum; 0 for a replica in another state or without an artifact id.
uint64_t InventoryDigestOf(const ReplicaInfo& replica);

}  // namespace tensorcast
