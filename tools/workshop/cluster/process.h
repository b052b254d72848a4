// A child process with its output in a file and a pipe that tells when it is ready. It never outlives its
// parent: the kernel kills it when the thread that started it ends. Start it from a thread that lives long
// enough (main). Thread-compatible.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/handles/handles.h"

namespace tensorcast {

using Environment = std::vector<std::pair<std::string, std::string>>;

// The path of the running program.
absl::StatusOr<std::string> OwnBinary();

struct ProcessOptions {
  std::vector<std::string> argv;  // argv[0] is the program's path
  Environment environment;        // added to the parent's
  std::string log_path;           // stdout and stderr, appended; empty: inherited
  std::string network_namespace;  // path of its file (needs root); empty: the parent's
  // Adds "--ready-fd N" to argv: the child writes one line there when it serves.
  bool ready_pipe = false;
};

class Process {
 public:
  static absl::StatusOr<std::unique_ptr<Process>> Start(const ProcessOptions& options);
  // Kills the process (SIGKILL) if it still runs, and reaps it.
  ~Process();

  pid_t pid() const { return pid_; }
  const std::string& log_path() const { return log_path_; }

  // The line that the child wrote when it was ready. UNAVAILABLE with the end of its log when it ended
  // before.
  absl::StatusOr<std::string> WaitReady(SteadyTime deadline);
  // After SIGSTOP it returns once no thread of the process runs any more.
  absl::Status Signal(int signal_number);
  // The exit code, or 128 + the signal that ended the process. DEADLINE_EXCEEDED when it still runs.
  absl::StatusOr<int> Wait(SteadyTime deadline);
  // SIGTERM, then SIGKILL after `grace`. Returns the result of Wait.
  absl::StatusOr<int> Stop(absl::Duration grace);
  bool running() const;

 private:
  Process(pid_t pid, UniqueFd pidfd, UniqueFd ready, std::string name, std::string log_path);

  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd ready_;
  std::string name_;
  std::string log_path_;
  mutable bool reaped_ = false;
  int exit_code_ = 0;
};

// The last lines of a file, for error messages.
std::string FileTail(const std::string& path, size_t lines);

}  // namespace tensorcast
