#include "core/replica/inventory_digest.h"

#include <xxhash.h>

namespace tensorcast {

uint64_t InventoryDigestOf(const ReplicaInfo& replica) {
  const bool counts = replica.state == ReplicaState::kReady || replica.state == ReplicaState::kPartial;
  // The global store hears only of replicas with an artifact.
  if (!counts || replica.artifact_id.empty()) return 0;
  return XXH3_64bits(replica.id.data(), replica.id.size());
}

}  // namespace tensorcast
