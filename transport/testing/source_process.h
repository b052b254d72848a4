// A serving in a process of its own, so that tests can kill and stop it.
//
// A test binary re-executes itself: its main() calls MaybeRunSourceProcess first. The child serves the test
// pattern, prints its descriptor and stays until its standard input closes. The child shares no state with
// its parent by fork, because UCX would not survive it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace tensorcast::transport {

using TransportFactory = std::function<std::unique_ptr<Transport>(const std::string& lane)>;

// If SourceProcess started this process, runs the serving to its end and returns true; else returns false.
bool MaybeRunSourceProcess(int argc, char** argv, const TransportFactory& create);

class SourceProcess {
 public:
  // Starts a copy of this binary that serves `image_bytes` bytes of the pattern over `lane`.
  static absl::StatusOr<std::unique_ptr<SourceProcess>> Start(const std::string& lane, uint64_t image_bytes);
  // Kills it, if it still runs, and reaps it.
  ~SourceProcess();

  const std::string& descriptor() const { return descriptor_; }
  void Kill();  // SIGKILL, and waits until it is gone
  void Stop();  // SIGSTOP, and waits until it has stopped
  void Continue();

 private:
  SourceProcess(pid_t pid, int stdin_fd, int stdout_fd)
      : pid_(pid), stdin_fd_(stdin_fd), stdout_fd_(stdout_fd) {}
  absl::Status ReadDescriptor();

  pid_t pid_;
  int stdin_fd_;
  int stdout_fd_;
  std::string descriptor_;
};

}  // namespace tensorcast::transport
