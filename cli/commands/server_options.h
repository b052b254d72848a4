// Makes the options of the servers from the configuration. Servers and `config check` use the same function,
// and so report the same errors. Limits of the process are not checked: a shell has other limits than a
// systemd unit.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/daemon_options.h"
#include "global_store/app/global_store_server.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {

// The servers to read options for.
enum class Roles { kAll, kGlobalStore, kDaemon };

// Options of a server that `roles` leaves out have their defaults.
struct ServerOptions {
  global_store::GlobalStoreOptions store;  // for a daemon without daemon.global_store: its embedded store
  daemon::DaemonOptions daemon;
};

// INVALID_ARGUMENT with a line for each fault: its key, its value, and what to do. Loads certificates and
// checks this host (addresses, groups, folders, memory). Changes nothing, and calls no other process, except
// a name server for host names. Thread-safe.
absl::StatusOr<ServerOptions> ReadServerOptions(const v1::Config& config, Roles roles);

// Restricts SQLite's file and its folder to this process's user. Creates the file and the folder if they are
// missing.
absl::Status MakeMetadataPrivate(const std::string& metadata_path);

// Starts the global store of a daemon without daemon.global_store. It runs in this process, on a socket in
// the daemon's state folder, which is made if it is missing. Sets the store's address in the daemon's
// options. The store must outlive the daemon.
absl::StatusOr<std::unique_ptr<global_store::GlobalStoreServer>> StartEmbeddedStore(ServerOptions& options);

}  // namespace tensorcast::cli
