// The helper process of a node: what its daemon starts to broadcast between GPUs (collective/helper). No
// command for people.
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "cli/commands/command.h"
#include "collective/communicator.h"
#include "collective/helper/serve.h"
#include "core/device/device_runtime.h"

namespace tensorcast::cli {
namespace {

struct NcclHelperFlags {
  int fd = -1;
  std::string library;
};

void AddFlags(Flags& flags, NcclHelperFlags& values) {
  flags.Add("--fd", values.fd, "Descriptor of the socket to the daemon", {.required = true});
  flags.Add("--library", values.library, "Path of NCCL's library; empty: the system's library");
}

absl::Status Help(const CommonFlags&, const NcclHelperFlags& flags) {
  return helper::Serve(flags.fd, [&flags]() -> absl::StatusOr<helper::HelperTools> {
    helper::HelperTools tools;
    TC_ASSIGN_OR_RETURN(tools.devices, CreateCudaRuntime());
    TC_ASSIGN_OR_RETURN(tools.library, LoadNccl(flags.library, tools.devices.get()));
    return tools;
  });
}

}  // namespace

Command NcclHelperCommand() {
  return {.name = "nccl-helper", .role = Role::kSilent, .bind = Bind(AddFlags, Help)};
}

}  // namespace tensorcast::cli
