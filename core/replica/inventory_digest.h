// The inventory digest, which a node and the global store compare to check that they list the same replicas.
// It is the sum, modulo 2^64, of XXH3-64 over the ids of ready and partial replicas. Because it is a sum, one
// replica more or less changes it by one addition.
#pragma once

#include <cstdint>

#include "core/replica/replica.h"

namespace tensorcast {

// The replica's part of the sum; 0 in a state that does not count.
uint64_t InventoryDigestOf(const ReplicaInfo& replica);

}  // namespace tensorcast
