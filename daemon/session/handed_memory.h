// The parts of a put's image that need no streaming, because they are in memory that no client can change.
// Thread-safe.
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

// Has the contract of StoreEngine::LeaseReplica.
using LeaseReplica =
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<ReplicaLease>>(std::string_view replica_id)>;

// Maps sealed memfds and leases replicas, for as long as a copy of the result's `keep_alive` lives. A
// client's statement about replicas is only a hint. The result leaves out memory that cannot be mapped, and a
// replica that is of another pool, is not ready in host memory, or is too short for the part; the client
// streams those bytes. Adds the padding between two parts. INVALID_ARGUMENT for parts that overlap or lie
// outside the image.
absl::StatusOr<HeldBytes> HoldHanded(std::vector<HandedMemory> handed, uint64_t image_bytes,
                                     std::string_view pool_id, LeaseReplica lease_replica);

}  // namespace tensorcast::daemon
