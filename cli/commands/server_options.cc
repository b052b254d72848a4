#include "cli/commands/server_options.h"

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "cli/config/message_reader.h"
#include "otel/sdk/options.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::cli {
namespace {

// A process reads this section before any other, for its own telemetry; otel/sdk names the key itself.
void CheckObservability(const v1::ObservabilityConfig& config, Findings& findings) {
  findings.Add("observability", otel::sdk::ResolveOptions(config.otel(), "daemon").status());
  const std::filesystem::path file = config.trace_file();
  std::error_code ignored;
  if (file.has_parent_path() && !std::filesystem::is_directory(file.parent_path(), ignored)) {
    findings.Add("observability.trace_file",
                 absl::StrCat("\"", file.string(), "\": the folder ", file.parent_path().string(),
                              " does not exist; make this folder first"));
  }
}

}  // namespace

absl::StatusOr<ServerOptions> ReadServerOptions(const v1::Config& config, Roles roles) {
  ServerOptions options;
  config::MessageReader reader(config);
  Findings& findings = reader.findings();
  // The global store has no lanes of its own and includes no transport, so the names are passed in.
  options.store.filling_lanes = transport::FillingLaneNames();
  // Both servers are checked against one file, which names one certificate. On its host the file starts one
  // of them, so the certificate may have the role of either.
  if (roles == Roles::kAll) {
    options.store.security.own_roles |= options.daemon.security.own_roles;
    options.daemon.security.own_roles = options.store.security.own_roles;
  }
  if (roles != Roles::kDaemon) {
    options.store.FromConfig(reader);
    options.store.Validate(findings);
  }
  if (roles != Roles::kGlobalStore) {
    options.daemon.FromConfig(reader);
    options.daemon.Validate(findings);
  }
  // This daemon starts a store of its own (StartEmbeddedStore), with the configuration's times alone.
  if (roles == Roles::kDaemon && options.daemon.global_store.empty()) {
    options.store.FromConfig(reader);
    options.store.ValidateTimes(findings);
  }
  CheckObservability(config.observability(), findings);
  // Only here, so that one run shows every mistake.
  TC_RETURN_IF_ERROR(findings.ToStatus());
  return options;
}

absl::Status MakeMetadataPrivate(const std::string& metadata_path) {
  const std::filesystem::path path = metadata_path;
  if (const auto folder = path.parent_path(); !folder.empty()) {
    TC_RETURN_IF_ERROR(Annotate(MakePrivateFolder(folder.string(), path.filename().string()),
                                "the folder of global_store.metadata_path"));
  }
  return Annotate(MakePrivateFile(metadata_path), "global_store.metadata_path");
}

absl::StatusOr<std::unique_ptr<global_store::GlobalStoreServer>> StartEmbeddedStore(ServerOptions& options) {
  daemon::DaemonOptions& daemon = options.daemon;
  // Clients of the groups that are let in pass through it to the sockets.
  const mode_t others = daemon.handle_groups.empty() ? 0 : 0011;
  TC_RETURN_IF_ERROR(Annotate(MakePrivateFolder(daemon.state_dir, "node_id", others), "daemon.state_dir"));
  global_store::GlobalStoreOptions store = options.store;
  // One daemon asks this store, over a socket in a folder that is closed to other users. So it needs no
  // certificates, waits for no other node, and keeps its facts beside that daemon's state.
  store.listen = absl::StrCat("unix:", daemon.state_dir, "/global-store.sock");
  store.metadata_store = "sqlite";
  store.metadata_path = daemon.state_dir + "/metadata.db";
  store.awaits_nodes = false;
  store.security = {};
  // SQLite would make the file with the umask's mode.
  TC_RETURN_IF_ERROR(MakePrivateFile(store.metadata_path));
  TC_ASSIGN_OR_RETURN(std::unique_ptr<global_store::GlobalStoreServer> server,
                      global_store::GlobalStoreServer::Start(store));
  daemon.global_store = server->address();
  daemon.global_store_label = "embedded";
  return server;
}

}  // namespace tensorcast::cli
