// Gets that advance a replica (core/ingest/advance.h): whether a request may ask for it, and what reads the
// earlier version where that stands in the way. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/engine/engine.h"
#include "core/ingest/advance.h"
#include "core/replica/replica.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/session/sessions.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// What becomes of the replica of an earlier version.
enum class AdvanceMode : uint8_t {
  kBeside,     // the new version is made beside it
  kPreferred,  // the new version is written over it where that can be, else made beside it
  kRequired,   // and else the request fails
};

// INVALID_ARGUMENT for a request to advance to a part of an artifact, over a chosen lane, or elsewhere than
// in host memory.
absl::Status CheckAdvance(const v1::MaterializeReplicaRequest& request, const Location& location);

// The error of an advance with the processes and nodes that read the earlier version, as far as they are
// known; not with other transfers of this node.
absl::Status NameReaders(const absl::Status& refused, const Advance& advance, const StoreEngine& engine,
                         const Sessions& sessions, const ServeRegistry& servings);

}  // namespace tensorcast::daemon
