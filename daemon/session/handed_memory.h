// The parts of a put's image that need no streaming: they are in memory that no client can change any more.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/handles/handles.h"
#include "core/replicas/replica_lease.h"
#include "daemon/session/ring_source.h"

namespace tensorcast::daemon {

// As StoreEngine::LeaseReplica.
using LeaseReplica =
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<ReplicaLease>>(std::string_view replica_id)>;

// Maps sealed memfds and leases replicas, as long as copies of the result live. A client's statement about
// replicas is only a hint. A replica that is of another pool, is not ready in this host memory, or is too
// short for the part is left out, as is memory that cannot be mapped; the client streams those bytes. The
// padding between two parts is added. INVALID_ARGUMENT for parts that overlap or lie outside the image.
absl::StatusOr<HeldBytes> HoldHanded(std::vector<HandedMemory> handed, uint64_t image_bytes,
                                     std::string_view pool_id, LeaseReplica lease_replica);

}  // namespace tensorcast::daemon
