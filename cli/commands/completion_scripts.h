// Completion of the command line by shells, made from what --help shows. Each script completes commands,
// options, and values that are one of a list or a path.
#pragma once

#include <string>

#include "cli/commands/command_line.h"

namespace tensorcast::cli {

std::string BashCompletion(const CommandDescription& program);
std::string ZshCompletion(const CommandDescription& program);
std::string FishCompletion(const CommandDescription& program);

}  // namespace tensorcast::cli
