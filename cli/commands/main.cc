// The program `tensorcast <command>`.
#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "absl/log/initialize.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/command_line.h"
#include "cli/commands/commands.h"
#include "cli/commands/programs.h"
#include "cli/commands/termination.h"

int main(int argc, char** argv) {
  namespace cli = tensorcast::cli;
  try {
    const std::vector<cli::Command> commands = cli::AllCommands();
    // Before signals are blocked: the other program would inherit that, and one that this program took would
    // be lost.
    if (const std::string program = cli::OtherProgram(commands, argc, argv); !program.empty()) {
      cli::PrintErrorsAsJson(
          std::any_of(argv, argv + argc, [](const char* word) { return std::strcmp(word, "--json") == 0; }));
      return cli::Fail(cli::BecomeProgram(program, argv));
    }
    cli::HandleSignals();
    absl::InitializeLog();
    return cli::ParseAndRun(commands, argc, argv);
  } catch (const std::exception& error) {
    // Nothing of ours throws; what the standard library and others do ends here, and not in an abort.
    return cli::Fail(absl::InternalError(absl::StrCat("run the command: unexpected exception (", error.what(),
                                                      "); report this defect of the program")));
  }
}
