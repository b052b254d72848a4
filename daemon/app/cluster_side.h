// This node's connections to the rest of the cluster: the global store, and other daemons' replicas. The
// members of each struct are in the order of construction: later members use earlier members. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/task_loop.h"
#include "core/device/device_runtime.h"
#include "daemon/app/daemon_options.h"
#include "daemon/app/storage.h"
#include "daemon/global_store_link/eviction_guard.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/global_store_link/known_keys.h"
#include "daemon/global_store_link/replica_feed.h"
#include "daemon/sources/granted_source.h"
#include "daemon/sources/local_attach.h"
#include "daemon/sources/peer_client.h"
#include "daemon/sources/peer_pools.h"
#include "daemon/sources/running_grants.h"
#include "daemon/sources/source_finder.h"
#include "daemon/telemetry/conservation.h"
#include "daemon/telemetry/reports.h"
#include "daemon/telemetry/trace_export.h"
#include "proto/types.pb.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// Timeout of a background call that fetches or publishes a manifest.
inline constexpr absl::Duration kManifestTimeout = absl::Seconds(1);

struct GlobalStoreSide {
  // `storage` must outlive this object.
  GlobalStoreSide(const DaemonOptions& options, const v1::Node& node, const Storage* storage);
  GlobalStoreSide(const GlobalStoreSide&) = delete;
  GlobalStoreSide& operator=(const GlobalStoreSide&) = delete;

  const std::shared_ptr<GlobalStoreChannel> channel;
  const std::unique_ptr<GlobalStoreClient> client;
  KnownKeys known_keys;
  TransferLog transfers;
  // Receives the ended transfers; may be null. REQUIRES: set before the engine is made.
  TraceExporter* traces = nullptr;
  ReplicaFeed feed;
  GlobalStoreLink link;
  ClusterEvictionGuard guard;
};

// This node's access to other daemons' replicas.
struct SourceSide {
  // `devices`, `transports` and `store` must outlive this object.
  SourceSide(const DaemonOptions& options, const std::string& node_id, DeviceRuntime* devices,
             const Storage& storage, std::vector<transport::Transport*> transports, GlobalStoreSide& store);

  const std::unique_ptr<PeerClient> peers;
  PeerPools pools;
  RunningGrants grants;
  Conservation conservation;
  TraceExporter traces;
  LocalAttacher attacher;
  const GrantedSourceOpener opener;
  TaskLoop background;        // reports ended grants, and closes their pulls
  FindGrantShare find_share;  // set once the engine exists
  const SourceFinder finder;
};

}  // namespace tensorcast::daemon
