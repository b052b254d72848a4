// The parent's side of a helper process: starts the process, exchanges messages with it, and kills it. The
// process has its own process group, and no descriptors except the standard ones and the socket.
//
// Thread-compatible; Interrupt is thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"

namespace tensorcast::helper {

class ChildProcess {
 public:
  // Runs this program (/proc/self/exe) again, with the arguments `argv` (its name first) and then "--fd=3":
  // descriptor 3 is the child's end of the socket. RESOURCE_EXHAUSTED if no thread can be started.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> argv);
  ~ChildProcess() { Kill(); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const;

  // Sends one message of at most kMaxMessageBytes. Does not block. UNAVAILABLE if the process has ended or
  // its socket is full.
  absl::Status Send(const std::string& message);
  // Waits for the process's next message. UNAVAILABLE if the process has ended or closed the socket,
  // DEADLINE_EXCEEDED if no message arrived in time.
  absl::StatusOr<std::string> Receive(SteadyTime deadline);

  // Kills the process and does not wait for its end. A waiting Receive then returns. Thread-safe.
  void Interrupt();
  // Kills the process, even if it is stopped, and blocks until the process has ended. The kernel has then
  // released all resources of the process, also mappings of device memory. Idempotent.
  void Kill();

 private:
  // The thread that starts the process. To the kernel, this thread is the process's parent, and the kernel
  // kills the process when the parent ends (serve.h). Therefore the thread lives as long as the process.
  class Starter {
   public:
    Starter() = default;
    ~Starter();
    absl::StatusOr<pid_t> Start(const std::vector<std::string>& argv, int socket);

   private:
    absl::Notification child_is_gone_;
    std::thread thread_;
  };

  ChildProcess(std::unique_ptr<Starter> starter, pid_t pid, UniqueFd pidfd, UniqueFd socket)
      : starter_(std::move(starter)), pid_(pid), pidfd_(std::move(pidfd)), socket_(std::move(socket)) {}

  const std::unique_ptr<Starter> starter_;
  const pid_t pid_;
  const UniqueFd pidfd_;
  const UniqueFd socket_;
  bool reaped_ = false;
};

}  // namespace tensorcast::helper
