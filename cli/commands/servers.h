// From the configuration to the options of the servers: the one place where both are known.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "daemon/app/daemon_options.h"
#include "global_store/app/global_store_server.h"
#include "proto/config.pb.h"
#include "transport/lane.h"

namespace tensorcast::cli {

absl::StatusOr<global_store::GlobalStoreOptions> ToGlobalStoreOptions(const v1::GlobalStoreConfig& config);

// Where UCX listens, from daemon.ucx_listen and daemon.ucx_data_ports: each lane introduces itself on a port
// of its own, and all share the data ports. INVALID_ARGUMENT when they do not fit beside each other. Ports
// are 0 (any) where ucx_listen's is.
struct UcxPorts {
  std::string messages_listen;  // host:port of the lane "ucx"
  std::string rma_listen;       // of "ucx-rma"
  transport::PortRange data;
};
absl::StatusOr<UcxPorts> PortsOfUcx(const v1::DaemonConfig& config);

// A daemon and what it borrows or, alone, brings along. Destroy the daemon first.
struct DaemonParts {
  std::unique_ptr<DeviceRuntime> devices;
  std::unique_ptr<global_store::GlobalStoreServer> embedded;  // when daemon.global_store is empty
  daemon::DaemonOptions options;
};

// Opens the devices that the configuration names and, where it names no global store, starts
// one in this process. INVALID_ARGUMENT names the key that cannot work.
absl::StatusOr<DaemonParts> MakeDaemonParts(const v1::Config& config);

}  // namespace tensorcast::cli
