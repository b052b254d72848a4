// This node's replicas and the parts that read them: the handle socket for clients, pulls for other daemons,
// and possession proofs for the global store. Thread-safe.
//
// All leases must end before the engine is destroyed. Therefore the members that hold leases come after the
// engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/device_broadcaster.h"
#include "core/device/device_runtime.h"
#include "core/engine/engine.h"
#include "core/handles/handle_server.h"
#include "daemon/app/cluster_side.h"
#include "daemon/app/daemon_options.h"
#include "daemon/app/storage.h"
#include "daemon/keeper/kept_pool.h"
#include "daemon/service/publications.h"
#include "daemon/serving/possession.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/session/sessions.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

struct EngineSide {
  // The arguments must outlive the result. The engine takes the replicas of `kept`, which may be null.
  static absl::StatusOr<std::unique_ptr<EngineSide>> Start(const DaemonOptions& options,
                                                           const std::string& node_id, DeviceRuntime* devices,
                                                           const Storage& storage,
                                                           std::vector<transport::Transport*> transports,
                                                           GlobalStoreSide& store, KeptPool* kept);

  Publications publications;  // outlives the engine: an ingest may outlive its put
  std::unique_ptr<DeviceBroadcaster> broadcaster;
  std::unique_ptr<StoreEngine> engine;
  std::unique_ptr<HandleServer> handles;
  std::optional<Sessions> sessions;
  std::optional<ServeRegistry> servings;
  std::optional<Possession> possession;
};

}  // namespace tensorcast::daemon
