// The command line as people write it: puts commands before them, reads what they wrote, and runs what they
// chose.
#pragma once

#include <vector>

#include "cli/commands/command.h"

namespace tensorcast::cli {

// Returns the exit code of the command, or 2 for a command line that makes no sense. Telemetry is up while
// the command runs, as the configuration says.
int ParseAndRun(const std::vector<Command>& commands, int argc, const char* const* argv);

}  // namespace tensorcast::cli
