// Gets that advance a replica (core/ingest/advance.h): checks such requests, and names the readers of the
// earlier version that stand in the way. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/engine/engine.h"
#include "core/ingest/advance.h"
#include "core/replica/replica.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/session/sessions.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// What happens to the replica of an earlier version.
enum class AdvanceMode : uint8_t {
  kBeside,     // the new version is made beside it
  kPreferred,  // the new version is written over it if possible, else made beside it
  kRequired,   // the new version is written over it, or the request fails
};

// INVALID_ARGUMENT for an advance to a part of an artifact, over a chosen lane, or at another place than host
// memory.
absl::Status CheckAdvance(const v1::MaterializeReplicaRequest& request, const Location& location);

// The known processes and nodes that read a replica, in the words of a message. Leaves out processes with a
// live lease for which `except` is true; null: leaves out none.
std::vector<std::string> ReadersOf(const std::string& replica_id, const Sessions& sessions,
                                   const ServeRegistry& servings,
                                   const std::function<bool(const void* lease)>& except = nullptr);
// Lists the first of them, and how many more there are.
std::string ListReaders(std::vector<std::string> readers);

// The error of an advance, with the known processes and nodes that read the earlier version; without other
// transfers of this node.
absl::Status NameReaders(const absl::Status& refused, const Advance& advance, const StoreEngine& engine,
                         const Sessions& sessions, const ServeRegistry& servings);

}  // namespace tensorcast::daemon
