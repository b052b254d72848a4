// Finds and starts the other program of the package. Thread-compatible: reads the environment variable PATH.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast::cli {

inline constexpr char kTensorcast[] = "tensorcast";
// Benchmarks, the demo and other commands that need clusters of processes (tools/workshop).
inline constexpr char kWorkshop[] = "tensorcast-bench";

// The path of the program with this name: in the folder of the running program, else in an absolute folder of
// PATH. NOT_FOUND names the searched folders.
absl::StatusOr<std::string> FindProgram(const std::string& name);

// Replaces this process with the other program (exec), and passes `argv` unchanged, including argv[0].
// Returns only on error. REQUIRES: no other thread has work to finish; no signal is blocked, since the other
// program would inherit the blocked signals.
absl::Status BecomeProgram(const std::string& name, char* const* argv);

}  // namespace tensorcast::cli
