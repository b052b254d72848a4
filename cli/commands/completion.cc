#include <cstdio>

#include "cli/commands/command.h"
#include "cli/commands/command_line.h"
#include "cli/commands/commands.h"
#include "cli/commands/completion_scripts.h"
#include "cli/commands/man_page.h"

namespace tensorcast::cli {
namespace {

int PrintText(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return 0;
}

int RunBash(const CommonFlags&) { return PrintText(BashCompletion(Describe(AllCommands()))); }
int RunZsh(const CommonFlags&) { return PrintText(ZshCompletion(Describe(AllCommands()))); }
int RunFish(const CommonFlags&) { return PrintText(FishCompletion(Describe(AllCommands()))); }
int RunMan(const CommonFlags&) { return PrintText(ManPage(Describe(AllCommands()))); }

}  // namespace

Command CompletionCommand() {
  return {.name = "completion",
          .help = "Print the completion script of a shell, or the manual page",
          .commands = {{.name = "bash",
                        .help = "Print the script for bash: source <(tensorcast completion bash)",
                        .role = Role::kSilent,
                        .bind = Bind(RunBash)},
                       {.name = "zsh",
                        .help = "Print the script for zsh, for a file _tensorcast in a folder of fpath",
                        .role = Role::kSilent,
                        .bind = Bind(RunZsh)},
                       {.name = "fish",
                        .help = "Print the script for fish: tensorcast completion fish | source",
                        .role = Role::kSilent,
                        .bind = Bind(RunFish)},
                       {.name = "man",
                        .help = "Print the manual page: tensorcast completion man | man -l -",
                        .role = Role::kSilent,
                        .bind = Bind(RunMan)}}};
}

}  // namespace tensorcast::cli
