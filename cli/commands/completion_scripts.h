// Makes shell scripts that complete the command line, from the content of --help. A script completes
// commands, options, paths and values of a fixed list.
#pragma once

#include <string>

#include "cli/commands/command_line.h"

namespace tensorcast::cli {

std::string BashCompletion(const CommandDescription& program);
std::string ZshCompletion(const CommandDescription& program);
std::string FishCompletion(const CommandDescription& program);

}  // namespace tensorcast::cli
