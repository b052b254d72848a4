// The process that keeps a daemon's host pool (daemon/keeper), which that starts. No command for people.
#include "daemon/keeper/keeper.h"

#include <string>

#include "cli/commands/command.h"

namespace tensorcast::cli {
namespace {

struct KeeperFlags {
  std::string socket;
  int linger_ms = 0;
  int ready_fd = -1;
};

void AddFlags(Flags& flags, KeeperFlags& values) {
  flags.Add("--socket", values.socket, "Where the daemon finds it", {.required = true});
  flags.Add("--linger-ms", values.linger_ms, "How long it waits for a daemon", {.required = true});
  flags.Add("--ready-fd", values.ready_fd, "Closed when it listens", {.required = true});
}

int RunKeeper(const CommonFlags&, const KeeperFlags& flags) {
  return ExitCode(daemon::RunKeeper(flags.socket, absl::Milliseconds(flags.linger_ms), flags.ready_fd));
}

}  // namespace

Command KeeperCommand() {
  return {.name = "keeper", .role = Role::kSilent, .bind = Bind(AddFlags, RunKeeper)};
}

}  // namespace tensorcast::cli
