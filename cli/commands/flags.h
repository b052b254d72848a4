// Binds the commands to the command line (CLI11, which only flags.cc sees).
#pragma once

namespace tensorcast::cli {

// Parses, runs the chosen command and returns its exit code; 2 for a command line that makes no sense.
int ParseAndRun(int argc, char** argv);

}  // namespace tensorcast::cli
