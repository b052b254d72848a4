// The one binary: `tensorcast <command>`.
#include <exception>

#include "absl/log/initialize.h"
#include "absl/status/status.h"
#include "cli/commands/command_line.h"
#include "cli/commands/commands.h"
#include "cli/commands/termination.h"

int main(int argc, char** argv) {
  tensorcast::cli::HandleSignals();
  absl::InitializeLog();
  try {
    return tensorcast::cli::ParseAndRun(tensorcast::cli::AllCommands(), argc, argv);
  } catch (const std::exception& error) {
    // Nothing of ours throws; what the standard library and others do ends here, and not in an abort.
    return tensorcast::cli::Fail(absl::InternalError(error.what()));
  }
}
