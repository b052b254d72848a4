// The one binary: `tensorcast <command>`.
#include "absl/log/initialize.h"
#include "tools/cli/common.h"
#include "tools/cli/flags.h"

int main(int argc, char** argv) {
  tensorcast::cli::HandleSignals();
  absl::InitializeLog();
  return tensorcast::cli::ParseAndRun(argc, argv);
}
