// From the configuration to the options of the servers: the one place where both are known. Nothing is opened
// or started here but the global store of a daemon that works alone.
//
// Errors are INVALID_ARGUMENT and name the key. Stateless; thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/daemon_options.h"
#include "global_store/app/global_store_server.h"
#include "proto/config.pb.h"
#include "rpc/credentials.h"
#include "security/key_rules.h"
#include "transport/lane.h"

namespace tensorcast::cli {

// Loads the certificates that the configuration names; null where it names none.
absl::StatusOr<std::shared_ptr<const rpc::Credentials>> LoadCredentials(const v1::SecurityConfig& config);

// INVALID_ARGUMENT, with security.keys in front, for a rule that cannot be read.
absl::StatusOr<security::KeyRules> ToKeyRules(const v1::SecurityConfig& config);

// Lets only this process's user into SQLite's file and its folder. Makes both where they are
// missing.
absl::Status MakeMetadataPrivate(const std::string& metadata_path);

// The options of the metadata store etcd.
absl::StatusOr<global_store::EtcdOptions> ToEtcdOptions(const v1::GlobalStoreConfig& config);
absl::StatusOr<global_store::GlobalStoreOptions> ToGlobalStoreOptions(const v1::GlobalStoreConfig& config);

// The paths of a daemon's sockets: those that are configured, else their names in SocketFolderOf the state
// folder (base/posix/socket_folders.h).
struct DaemonSockets {
  std::string operators;  // gRPC with the operator role
  std::string clients;    // gRPC with the client role
  std::string handles;
};
DaemonSockets SocketsOf(const v1::DaemonConfig& config);

absl::StatusOr<daemon::DaemonOptions> ToDaemonOptions(const v1::Config& config);
absl::StatusOr<transport::LaneConfig> ToLaneConfig(const v1::Config& config);

// The global store of a daemon with a configuration of none: in this process, on a socket in the daemon's
// state folder, which is made where it is missing. `options` are told where it is. It must outlive the
// daemon.
absl::StatusOr<std::unique_ptr<global_store::GlobalStoreServer>> StartEmbeddedStore(
    const v1::Config& config, daemon::DaemonOptions& options);

}  // namespace tensorcast::cli
