// The program `tensorcast-bench <command>`. `tensorcast` starts it in its place for some of its commands.
#include <exception>

#include "absl/log/initialize.h"
#include "absl/status/status.h"
#include "cli/commands/command_line.h"
#include "cli/commands/termination.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/commands/commands.h"

int main(int argc, char** argv) {
  namespace cli = tensorcast::cli;
  cli::HandleSignals();
  cli::CallWhenTerminatedAgain(tensorcast::TemporaryDirectory::RemoveAll);
  absl::InitializeLog();
  try {
    return cli::ParseAndRun(
        tensorcast::workshop::AllCommands(), argc, argv,
        "TensorCast's demo, models and benchmarks: clusters of real processes on this machine");
  } catch (const std::exception& error) {
    // Nothing of ours throws; what the standard library and others do ends here, and not in an abort.
    return cli::Fail(absl::InternalError(error.what()));
  }
}
