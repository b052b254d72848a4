// Hidden commands for the processes that a daemon starts: the keeper of its host pool (daemon/keeper), and
// the helper that broadcasts between GPUs (collective/helper).
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "cli/commands/command.h"
#include "collective/communicator.h"
#include "collective/helper/serve.h"
#include "core/device/device_runtime.h"
#include "daemon/keeper/keeper.h"

namespace tensorcast::cli {
namespace {

struct KeeperFlags {
  std::string socket;
  absl::Duration linger;
  int ready_fd = -1;
};

void AddFlags(Flags& flags, KeeperFlags& values) {
  flags.Add("--socket", values.socket, "Path of the socket that the daemon connects to", {.required = true});
  flags.Add("--linger", values.linger, "Max time without a daemon", {.required = true});
  flags.Add("--ready-fd", values.ready_fd, "Descriptor that is closed once the keeper listens",
            {.required = true});
}

// The daemon starts it, and a later daemon finds it by the socket (daemon/keeper/keeper.h).
absl::Status Keep(const CommonFlags&, const KeeperFlags& flags) {
  return daemon::RunKeeper(flags.socket, flags.linger, flags.ready_fd);
}

struct NcclHelperFlags {
  int fd = -1;
  std::string library;
};

void AddFlags(Flags& flags, NcclHelperFlags& values) {
  flags.Add("--fd", values.fd, "Descriptor of the socket to the daemon", {.required = true});
  flags.Add("--library", values.library, "Path of NCCL's library; empty: the system's library");
}

absl::Status Help(const CommonFlags&, const NcclHelperFlags& flags) {
  // Serve makes the tools once its daemon listens, and answers with the error where NCCL cannot be loaded.
  return helper::Serve(flags.fd, [&flags]() -> absl::StatusOr<helper::HelperTools> {
    helper::HelperTools tools;
    TC_ASSIGN_OR_RETURN(tools.devices, CreateCudaRuntime());
    TC_ASSIGN_OR_RETURN(tools.library, LoadNccl(flags.library, tools.devices.get()));
    return tools;
  });
}

}  // namespace

Command KeeperCommand() { return {.name = "keeper", .role = Role::kSilent, .bind = Bind(AddFlags, Keep)}; }

Command NcclHelperCommand() {
  return {.name = "nccl-helper", .role = Role::kSilent, .bind = Bind(AddFlags, Help)};
}

}  // namespace tensorcast::cli
