// All commands of tensorcast-bench, in the order in which --help lists them. To offer one to users as
// `tensorcast NAME` too, list it in cli/commands/workshop_commands.h.
#pragma once

#include <vector>

#include "cli/commands/command.h"

namespace tensorcast::workshop {

cli::Command MakeModelCommand();
cli::Command DemoCommand();
cli::Command OtelSmokeCommand();
cli::Command BenchCommand();

inline std::vector<cli::Command> AllCommands() {
  return {MakeModelCommand(), DemoCommand(), OtelSmokeCommand(), BenchCommand()};
}

}  // namespace tensorcast::workshop
