// From the configuration to the options of the servers. A start and `config check` call the same function, so
// that what one refuses the other does too. Not checked here are the limits of the process: a shell has
// others than the unit that starts a server.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/daemon_options.h"
#include "global_store/app/global_store_server.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {

// The servers that are started; a file that several hosts share has sections that are another's.
enum class Roles { kAll, kGlobalStore, kDaemon };

// Those of the servers that are not started are the defaults.
struct ServerOptions {
  global_store::GlobalStoreOptions store;  // of a daemon without daemon.global_store: the one within it
  daemon::DaemonOptions daemon;
};

// INVALID_ARGUMENT with a line for each thing that is wrong: its key, its value, and what to do. Loads
// certificates and looks at this host (addresses, groups, folders, memory); changes nothing, and asks no
// other process, but for the addresses of host names. Thread-safe.
absl::StatusOr<ServerOptions> ReadServerOptions(const v1::Config& config, Roles roles);

// Lets only this process's user into SQLite's file and its folder. Makes both where they are missing.
absl::Status MakeMetadataPrivate(const std::string& metadata_path);

// Starts the global store of a daemon without daemon.global_store: in this process, on a socket in the
// daemon's state folder, which is made where it is missing. The daemon's options are told where it is. It
// must outlive the daemon.
absl::StatusOr<std::unique_ptr<global_store::GlobalStoreServer>> StartEmbeddedStore(ServerOptions& options);

}  // namespace tensorcast::cli
