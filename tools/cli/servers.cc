// The two servers as commands: start, say so, serve until SIGTERM or SIGINT, drain.
#include "tools/cli/servers.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/log/log.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/posix/descriptors.h"
#include "core/status/status.h"
#include "daemon/app/daemon_server.h"
#include "otel/api/steady_time.h"
#include "tools/cli/commands.h"
#include "tools/cli/telemetry.h"

namespace tensorcast::cli {
namespace {

constexpr absl::Duration kDrain = absl::Seconds(15);
constexpr absl::Duration kRegistration = absl::Seconds(5);

// One line of JSON for whoever started this process and waits for it.
absl::Status TellReady(int fd, const nlohmann::json& addresses) {
  LOG(INFO) << "serving: " << addresses.dump();
  if (fd < 0) return absl::OkStatus();
  const std::string line = addresses.dump() + "\n";
  const ssize_t written = write(fd, line.data(), line.size());
  const int error = errno;
  close(fd);
  return written == static_cast<ssize_t>(line.size()) ? absl::OkStatus()
                                                      : ErrnoStatus(error, "write to", "--ready-fd");
}

void WaitForTermination() {
  absl::Notification done;
  const Cancellation::Registration registration = OnTerminationSignal().OnCancel([&] { done.Notify(); });
  done.WaitForNotification();
  LOG(INFO) << "stopping: draining for at most " << kDrain;
}

absl::Status ServeGlobalStore(const CommonFlags& common, const ServerFlags& flags) {
  TC_RETURN_IF_ERROR(RaiseDescriptorLimit());
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(common));
  TC_RETURN_IF_ERROR(ApplyLogConfig(config.log()));
  TC_ASSIGN_OR_RETURN(const global_store::GlobalStoreOptions options,
                      ToGlobalStoreOptions(config.global_store()));
  if (const auto folder = std::filesystem::path(options.metadata_path).parent_path(); !folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
      return ErrnoStatus(error.value(), "create the folder of global_store.metadata_path", folder.string());
  }
  TC_ASSIGN_OR_RETURN(const auto server, global_store::GlobalStoreServer::Start(options));
  TC_RETURN_IF_ERROR(TellReady(flags.ready_fd, {{"grpc", server->address()}}));
  WaitForTermination();
  server->Shutdown(kDrain);
  return absl::OkStatus();
}

absl::Status ServeDaemon(const CommonFlags& common, const ServerFlags& flags) {
  TC_RETURN_IF_ERROR(RaiseDescriptorLimit());
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(common));
  TC_RETURN_IF_ERROR(ApplyLogConfig(config.log()));
  TC_ASSIGN_OR_RETURN(DaemonParts parts, MakeDaemonParts(config));
  TC_ASSIGN_OR_RETURN(const auto daemon, daemon::DaemonServer::Start(std::move(parts.options)));
  // A global store that is away is not a reason not to serve: what this node holds can still be attached to.
  if (const absl::Status registered = daemon->WaitRegistered(absl::Now() + kRegistration); !registered.ok()) {
    LOG(WARNING) << "serving without the global store for now: " << registered.message();
  }
  TC_RETURN_IF_ERROR(TellReady(flags.ready_fd, {{"grpc", daemon->addresses().front()},
                                                {"unix", daemon->addresses().back()},
                                                {"handles", daemon->handle_socket()}}));
  WaitForTermination();
  daemon->Shutdown(SteadyNow() + kDrain);
  return absl::OkStatus();
}

}  // namespace

int RunGlobalStore(const CommonFlags& common, const ServerFlags& flags) {
  const absl::Status status = ServeGlobalStore(common, flags);
  return status.ok() ? 0 : (Fail(status), 1);
}

int RunDaemon(const CommonFlags& common, const ServerFlags& flags) {
  const absl::Status status = ServeDaemon(common, flags);
  return status.ok() ? 0 : (Fail(status), 1);
}

}  // namespace tensorcast::cli
