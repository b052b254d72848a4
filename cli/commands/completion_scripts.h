// Makes scripts for shells that complete the command line, from the content of --help. Each script completes
// commands, options, and values that are paths or one of a list.
#pragma once

#include <string>

#include "cli/commands/command_line.h"

namespace tensorcast::cli {

std::string BashCompletion(const CommandDescription& program);
std::string ZshCompletion(const CommandDescription& program);
std::string FishCompletion(const CommandDescription& program);

}  // namespace tensorcast::cli
