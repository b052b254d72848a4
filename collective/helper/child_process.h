// The parent's side of a helper process: starts it, exchanges messages with it, kills it. The process has its
// own process group and no descriptors except the standard ones and the socket. It has ended when Kill
// returns.
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
  // Runs the program argv[0] with the arguments `argv` and then "--fd=3": the child's end of the socket is
  // descriptor 3. Uses posix_spawn, so that no code of this process runs in the child: CUDA does not survive
  // a fork.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> argv);
  ~ChildProcess() { Kill(); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const;

  absl::Status Send(const std::string& message);
  // The process's next message. UNAVAILABLE when the process has ended or closed the socket,
  // DEADLINE_EXCEEDED when no message arrived in time.
  absl::StatusOr<std::string> Receive(SteadyTime deadline);

  // Kills the process without reaping it, which ends a Receive that waits. Any thread may call it.
  void Interrupt();
  // Kills the process, even a stopped one, and blocks until the kernel has released all that it held, also
  // its mappings of device memory. Idempotent.
  void Kill();

 private:
  // The thread that starts the process and lives as long as the process. The helper asks the kernel to kill
  // it when its parent ends (serve.h), and to the kernel that parent is the thread that started it.
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
