// Gets that advance a replica (core/ingest/advance.h): checks the request, and names the readers that prevent
// the advance. Thread-safe.
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

// What a get does with the replica of an earlier version.
enum class AdvanceMode : uint8_t {
  kBeside,     // makes the new version beside the replica
  kPreferred,  // writes over the replica if possible, else makes the new version beside it
  kRequired,   // writes over the replica, or fails
};

// INVALID_ARGUMENT for a request that asks for an advance, and also chooses tensors, a lane or the disk.
absl::Status CheckAdvance(const v1::MaterializeReplicaRequest& request, const Location& location);

// The known processes and nodes that read a replica, as words for a message. Leaves out the processes with a
// live lease for which `except` is true.
std::vector<std::string> ReadersOf(const std::string& replica_id, const Sessions& sessions,
                                   const ServeRegistry& servings,
                                   const std::function<bool(const void* lease)>& except = nullptr);
// One text with the first readers and the number of further readers.
std::string ListReaders(std::vector<std::string> readers);

// Returns `refused`, the error of an advance, with the known processes and nodes that read the earlier
// version. Does not name this node's own transfers. `location`: where the advance happens.
absl::Status NameReaders(const absl::Status& refused, const Advance& advance, const Location& location,
                         const StoreEngine& engine, const Sessions& sessions, const ServeRegistry& servings);

}  // namespace tensorcast::daemon
