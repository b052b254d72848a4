// The process that keeps a daemon's host pool (daemon/keeper), which that starts. No command for people.
#include "daemon/keeper/keeper.h"

#include <string>

#include "cli/commands/command.h"

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

absl::Status Keep(const CommonFlags&, const KeeperFlags& flags) {
  return daemon::RunKeeper(flags.socket, flags.linger, flags.ready_fd);
}

}  // namespace

Command KeeperCommand() { return {.name = "keeper", .role = Role::kSilent, .bind = Bind(AddFlags, Keep)}; }

}  // namespace tensorcast::cli
