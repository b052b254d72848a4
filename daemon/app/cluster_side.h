// This node's ways to the rest of the cluster: the global store, and the replicas of other daemons. In each
// group the members stand in the order of their making, so that each outlives what uses it. Thread-safe.
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

// Of a call for a manifest that this node's upkeep wants.
inline constexpr absl::Duration kManifestTimeout = absl::Seconds(1);

// The global store, as this node deals with it.
struct GlobalStoreSide {
  // `storage` must outlive it.
  GlobalStoreSide(const DaemonOptions& options, const v1::Node& node, const Storage* storage);
  GlobalStoreSide(const GlobalStoreSide&) = delete;
  GlobalStoreSide& operator=(const GlobalStoreSide&) = delete;

  const std::shared_ptr<GlobalStoreChannel> channel;
  const std::unique_ptr<GlobalStoreClient> client;
  KnownKeys known_keys;
  TransferLog transfers;
  // Told of transfers that ended; null: of none. Set before the engine is made, since its threads use it.
  TraceExporter* traces = nullptr;
  ReplicaFeed feed;
  GlobalStoreLink link;
  ClusterEvictionGuard guard;
};

// The ways to other daemons' replicas.
struct SourceSide {
  // `devices` and `transports` must outlive it, and so must `store`.
  SourceSide(const DaemonOptions& options, const std::string& node_id, DeviceRuntime* devices,
             const Storage& storage, std::vector<transport::Transport*> transports, GlobalStoreSide& store);

  const std::unique_ptr<PeerClient> peers;
  PeerPools pools;
  RunningGrants grants;
  Conservation conservation;
  TraceExporter traces;
  LocalAttacher attacher;
  const GrantedSourceOpener opener;
  TaskLoop background;        // ends what the opener opens
  FindGrantShare find_share;  // set once the engine is there
  const SourceFinder finder;
};

}  // namespace tensorcast::daemon
