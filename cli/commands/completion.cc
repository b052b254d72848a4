#include <cstdio>
#include <string>

#include "cli/commands/command.h"
#include "cli/commands/command_line.h"
#include "cli/commands/commands.h"
#include "cli/commands/completion_scripts.h"
#include "cli/commands/man_page.h"

namespace tensorcast::cli {
namespace {

// Made from the commands of this very program, so that a script offers what the program accepts. It needs
// neither a daemon nor a configuration, since the start-up file of a shell runs it.
template <std::string (*make)(const CommandDescription& program)>
int PrintMade(const CommonFlags&) {
  std::fputs(make(Describe(AllCommands())).c_str(), stdout);
  return 0;
}

}  // namespace

Command CompletionCommand() {
  return {.name = "completion",
          .help = "Print the completion script of a shell, or the manual page",
          .commands = {{.name = "bash",
                        .help = "Print the script for bash: source <(tensorcast completion bash)",
                        .role = Role::kSilent,
                        .bind = Bind(PrintMade<BashCompletion>)},
                       {.name = "zsh",
                        .help = "Print the script for zsh: save it as _tensorcast in a folder of fpath",
                        .role = Role::kSilent,
                        .bind = Bind(PrintMade<ZshCompletion>)},
                       {.name = "fish",
                        .help = "Print the script for fish: tensorcast completion fish | source",
                        .role = Role::kSilent,
                        .bind = Bind(PrintMade<FishCompletion>)},
                       {.name = "man",
                        .help = "Print the manual page: tensorcast completion man | man -l -",
                        .role = Role::kSilent,
                        .bind = Bind(PrintMade<ManPage>)}}};
}

}  // namespace tensorcast::cli
