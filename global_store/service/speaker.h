// Whether a process may make statements about a node: with certificates a node speaks only for itself.
// Thread-safe.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "global_store/coordinator/coordinator.h"

namespace tensorcast::global_store {

// PERMISSION_DENIED when the peer is another node than `node_id`. `peer`: the URI in the peer's certificate.
// Empty: the peer has no certificate, and its own statement counts. Operators and unregistered nodes are not
// refused here: each call decides about them.
absl::Status CheckSpeaksFor(Coordinator& coordinator, std::string_view peer, std::string_view node_id);

}  // namespace tensorcast::global_store
