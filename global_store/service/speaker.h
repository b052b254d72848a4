// Whether a process may say something of a node: with certificates a node speaks for itself alone.
// Thread-safe.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "global_store/coordinator/coordinator.h"

namespace tensorcast::global_store {

// Whether a process with this name (the URI in its certificate; empty: it has none, and says what it is)
// may speak for this node: PERMISSION_DENIED when it is another node. An operator, and a node that is not
// registered, are the call's own business.
absl::Status CheckSpeaksFor(Coordinator& coordinator, std::string_view peer, std::string_view node_id);

}  // namespace tensorcast::global_store
