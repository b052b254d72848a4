// What a node and the global store compare to know that they list the same replicas: the sum of XXH3-64 over
// the ids of those that are ready or partial, modulo 2^64. A sum, so that one replica more or less changes it
// by one addition.
#pragma once

#include <cstdint>

#include "core/replica/replica.h"

namespace tensorcast {

// What the replica adds to the sum; 0 in a state that does not count.
uint64_t InventoryDigestOf(const ReplicaInfo& replica);

}  // namespace tensorcast
