// The programs of the package are in one folder, and each starts the other by its name. Stateless.
// Thread-compatible, since it reads the environment variable PATH.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast::cli {

inline constexpr char kTensorcast[] = "tensorcast";
// Benchmarks, the demo and other commands that need clusters of processes (tools/workshop).
inline constexpr char kWorkshop[] = "tensorcast-bench";

// The path of the program with this name: in the folder of the running program, else in an absolute folder of
// PATH. NOT_FOUND names the places that were searched.
absl::StatusOr<std::string> FindProgram(const std::string& name);

// Replaces this process with the other program, which gets `argv` unchanged, including argv[0], and keeps the
// process id, descriptors and environment. Returns only on error. REQUIRES: no other thread has work to
// finish; no signal is blocked, since the other program would inherit the blocked signals.
absl::Status BecomeProgram(const std::string& name, char* const* argv);

}  // namespace tensorcast::cli
