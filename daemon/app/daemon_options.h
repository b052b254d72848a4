// What a daemon is started with. The command line makes it from the config file; tests fill it in.
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
#include "base/labels.h"
#include "core/artifact/layout.h"
#include "core/device/device_runtime.h"
#include "core/ingest/device_verification.h"
#include "transport/lane.h"
#include "transport/transport.h"

namespace tensorcast::rpc {
class Credentials;
}  // namespace tensorcast::rpc

namespace tensorcast::daemon {

struct DaemonOptions {
  std::string name;                    // of the node, for people; empty: the host's name
  Labels labels;                       // of the node, for policies and for people
  std::string listen = "127.0.0.1:0";  // gRPC for other hosts; empty: this host's sockets only
  // What others connect to; empty: what it listens on, or unix_socket. With port 0: listen's port. REQUIRES:
  // set when `listen` stands for every address.
  std::string advertise;
  std::string unix_socket;  // gRPC for the daemon's own user; empty: <state_dir>/daemon.sock
  std::string
      client_socket;  // gRPC for clients of this host, with their rights; empty: <state_dir>/client.sock
  std::string handle_socket;         // empty: <state_dir>/handles.sock
  std::vector<gid_t> handle_groups;  // that may use the last two, beside the daemon's own user
  int max_connections = 16384;       // of gRPC, and as many of the handle socket
  std::string state_dir;
  bool disk_tier = true;
  std::string disk_dir;  // packed artifacts; empty: <state_dir>/artifacts

  std::string global_store;        // its address; for a daemon on its own, that of the one in its process
  std::string global_store_label;  // for people; empty: the address
  // Called once, on a thread of the daemon, when it has to stop: another process took its node's place. The
  // daemon serves on until it is shut down, which must not be done in this call. May be empty.
  std::function<void(const absl::Status&)> on_replaced;

  std::shared_ptr<const rpc::Credentials> credentials;  // of this process; null: host:port is in clear

  std::string host_id;             // empty: the boot id
  bool local_lane = true;          // attach to, and be attached to by, daemons of this host
  std::vector<std::string> lanes;  // transports (transport/lanes), fastest first
  transport::LaneConfig lane_config;
  // Instead of transport/lanes, for tests.
  std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(std::string_view lane)> make_transport;
  absl::Duration peer_timeout =
      absl::Seconds(10);                           // a source that delivers nothing for this long is given up
  absl::Duration grant_life = absl::Seconds(30);   // of a pull served, without a word from the global store
  absl::Duration ticket_life = absl::Seconds(10);  // for a client to claim what it attached to

  uint64_t host_pool_bytes = uint64_t{1} << 30;
  bool huge_pages = true;
  // What keeps the host pool when this process ends, for the next one (daemon/keeper): this program with
  // these arguments; empty: nothing does.
  std::vector<std::string> keeper;
  // Let go of kept replicas that the host pool has no room for; else the start fails with their names.
  bool discard_kept = false;
  int prefault_threads = 1;
  std::string device_runtime =
      "none";  // the GPUs: "cuda", "none", "fake", or "auto": cuda where there are any
  DeviceVerification device_verification = DeviceVerification::kFull;
  int fake_devices = 1;
  uint64_t fake_device_bytes = uint64_t{1} << 30;  // of each
  DeviceRuntime* devices = nullptr;                // instead of those, for tests; must outlive the daemon
  uint64_t device_pool_bytes = 0;                  // of each; 0: 90 %
  // The helper process that broadcasts between the GPUs (collective/helper): this program's name and the
  // arguments that make it one; empty: none does.
  std::vector<std::string> broadcast_helper;
  bool nccl_named = false;                // the configuration says where NCCL is
  std::vector<std::string> import_roots;  // what ImportArtifact may read; none: nothing

  uint64_t compare_rate = uint64_t{512} << 20;     // bytes a second of imported files; 0: no limit
  uint64_t put_rings_bytes = uint64_t{256} << 20;  // of all rings through which clients put
  int max_concurrent_ingests = 4;
  int copy_threads = 0;  // 0: one a core, at most 4
  int staging_buffers = 8;
  uint64_t staging_buffer_bytes = kMaxChunkBytes;
  int serving_buffers = 8;  // of 2 MiB, to serve replicas on GPUs and disks from
};

}  // namespace tensorcast::daemon
