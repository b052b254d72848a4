// The manual page, made from the content of --help.
#pragma once

#include <string>

#include "cli/commands/command_line.h"

namespace tensorcast::cli {

// The page tensorcast(1) in the macros of man(7).
std::string ManPage(const CommandDescription& program);

}  // namespace tensorcast::cli
