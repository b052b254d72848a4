// Whether a process may make statements about a node: a node with a certificate speaks only for itself.
// Thread-safe.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "global_store/coordinator/coordinator.h"

namespace tensorcast::global_store {

// PERMISSION_DENIED when `peer` is a node other than `node_id`. `peer`: the URI in the peer's certificate;
// empty: the peer has no certificate and is trusted. OK for other roles and for an unknown `node_id`: each
// call decides about these.
absl::Status CheckSpeaksFor(Coordinator& coordinator, std::string_view peer, std::string_view node_id);

}  // namespace tensorcast::global_store
