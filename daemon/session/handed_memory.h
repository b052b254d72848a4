// The parts of a put's image in memory that no client can change. Thread-safe.
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

// Maps sealed memfds and leases replicas; the result's `keep_alive` owns both. Leaves out memory that cannot
// be mapped. Also leaves out a replica that is of another pool, is not ready in host memory, or is too short
// for the part. The client streams the bytes that are left out. Adds the padding between two parts.
// INVALID_ARGUMENT for parts that overlap or lie outside the image.
absl::StatusOr<HeldBytes> HoldHanded(std::vector<HandedMemory> handed, uint64_t image_bytes,
                                     std::string_view pool_id, LeaseReplica lease_replica);

}  // namespace tensorcast::daemon
