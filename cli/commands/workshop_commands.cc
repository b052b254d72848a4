#include "cli/commands/workshop_commands.h"

#include "cli/commands/commands.h"
#include "cli/commands/programs.h"

namespace tensorcast::cli {
namespace {

// Named here so that help, completion and the manual page list them. They never run in this process: main
// starts the other program before a command line is parsed.
Command InWorkshop(const WorkshopCommand& command) {
  return {.name = command.name, .help = command.help, .program = kWorkshop};
}

}  // namespace

Command MakeModelCommand() { return InWorkshop(kMakeModel); }
Command DemoCommand() { return InWorkshop(kDemo); }
Command OtelSmokeCommand() { return InWorkshop(kOtelSmoke); }
Command BenchCommand() { return InWorkshop(kBench); }

}  // namespace tensorcast::cli
