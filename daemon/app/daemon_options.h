// The options of a daemon and of all its parts.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/config_reader.h"
#include "base/labels.h"
#include "collective/helper/helper_process.h"
#include "core/device/device_options.h"
#include "core/disk/disk_options.h"
#include "core/engine/engine.h"
#include "core/handles/handle_server.h"
#include "core/memory/host_pool.h"
#include "daemon/keeper/keeper_options.h"
#include "daemon/sources/origin_comparer.h"
#include "objects/archive_options.h"
#include "objects/origin_options.h"
#include "rpc/records.h"
#include "rpc/security_options.h"
#include "transport/lane.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// The paths of a daemon's sockets.
struct DaemonSockets {
  std::string operators;  // gRPC with the operator role
  std::string clients;    // gRPC with the client role
  std::string handles;
};

struct DaemonOptions {
  std::string name;    // of the node, for people; empty: the name in its certificate, else the host's name
  Labels labels;       // of the node, for policies and for people
  std::string listen;  // gRPC for other hosts; empty: only this host's sockets
  // The address that other hosts connect to. Empty: `listen`, or unix_socket if `listen` is empty. Port 0
  // stands for the port of `listen`. REQUIRES: set when `listen` is a wildcard address.
  std::string advertise;
  // Each empty socket path means a default name in SocketFolderOf(state_dir) (base/posix/socket_folders.h).
  std::string unix_socket;           // gRPC for the daemon's own user
  std::string client_socket;         // gRPC for clients of this host, with the client role
  std::string handle_socket;         // descriptors of replicas
  std::vector<gid_t> handle_groups;  // groups that may use client_socket and handle_socket
  int max_connections = 16384;       // max at each gRPC address, and at the handle socket
  std::string state_dir;

  std::string global_store;        // address of the global store; a daemon that works alone has the
                                   // address of its embedded global store
  std::string global_store_label;  // for people; empty: the address
  // Called once, on a thread of the daemon, when another process took over the node. The daemon serves until
  // Shutdown. The function must not call Shutdown. May be empty.
  std::function<void(const absl::Status&)> on_replaced;

  rpc::SecurityOptions security{.own_roles = security::Only(security::Role::kNode)};

  std::string host_id;             // empty: the boot id
  bool local_lane = true;          // attach to daemons of this host, and let them attach
  std::vector<std::string> lanes;  // transports (transport/lanes), fastest first
  transport::LaneConfig lane_config;
  // Tests set it to replace transport/lanes.
  std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(std::string_view lane)> make_transport;
  absl::Duration peer_timeout = absl::Seconds(10);  // a source without bytes for this time is given up
  absl::Duration grant_life = absl::Seconds(30);    // max time of a served pull without an answered heartbeat

  HostPool::Options pool;
  KeeperOptions keeper;
  DeviceOptions gpus;
  DeviceRuntime* devices = nullptr;  // tests set it to replace `gpus`; must outlive the daemon
  HelperOptions broadcasts;          // between GPUs
  DiskOptions disk;
  std::string difference_base = "none";  // auto or none; applies to puts that name no base
  bool advance = false;                  // replication tasks write over the earlier version if possible
  objects::OriginOptions origins;
  objects::ArchiveOptions archives;
  EngineOptions engine;
  HandleServer::Options handles;
  OriginComparer::Options comparer;
  int serving_buffers = 8;  // buffers of 2 MiB, for serving replicas on GPUs and disks
  // Transfers that take this long or longer, from request to end, are slow: the daemon exports their traces.
  absl::Duration slow_transfer = absl::Seconds(30);
  rpc::ProcessFacts process;  // shown to operators

  DaemonSockets sockets() const;

  void FromConfig(ConfigReader& config) {
    config.Read("daemon.name", name);
    config.Read("daemon.listen", listen);
    config.Read("daemon.advertise", advertise);
    config.Read("daemon.unix_socket", unix_socket);
    config.Read("daemon.client_socket", client_socket);
    config.Read("daemon.handle_socket", handle_socket);
    config.Read("daemon.max_connections", max_connections);
    config.Read("daemon.state_dir", state_dir);
    config.Read("daemon.global_store", global_store);
    config.Read("daemon.host_id", host_id);
    config.Read("daemon.local_lane", local_lane);
    config.Read("daemon.peer_timeout", peer_timeout);
    config.Read("daemon.difference_base", difference_base);
    config.Read("daemon.advance", advance);
    config.Read("observability.recorder.slow_transfer", slow_transfer);
    ReadNames(config);
    ReadLanes(config);
    security.FromConfig(config);
    pool.FromConfig(config);
    keeper.FromConfig(config);
    gpus.FromConfig(config);
    broadcasts.FromConfig(config);
    disk.FromConfig(config);
    origins.FromConfig(config);
    archives.FromConfig(config);
    engine.FromConfig(config);
    handles.FromConfig(config);
    comparer.FromConfig(config);
  }
  // Checks conditions on several keys, and conditions on this host.
  void Validate(Findings& findings) const;

 private:
  void ReadNames(ConfigReader& config);
  void ReadLanes(ConfigReader& config);
};

}  // namespace tensorcast::daemon
