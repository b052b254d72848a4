// A helper process as its parent has it: started, asked, killed. It is alone in its process group, has no
// descriptor but the standard ones and the socket, and has ended for sure when Kill has returned.
//
// Thread-compatible, but for Interrupt.
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
  // Runs this program with these arguments, the first of which is its name, and "--fd=3", where its end of
  // the socket is. By posix_spawn: nothing of this process runs in the child, which would be the end of CUDA.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> argv);
  ~ChildProcess() { Kill(); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const;

  absl::Status Send(const std::string& message);
  // The next message. UNAVAILABLE when it has ended or closed the socket, DEADLINE_EXCEEDED when nothing
  // came.
  absl::StatusOr<std::string> Receive(SteadyTime deadline);

  // Ends what Receive waits for: the process is killed, and yet to be reaped. From any thread.
  void Interrupt();
  // Kills it, stopped or not, and blocks until the kernel has taken away all that it had, its mappings of
  // device memory among them. Idempotent.
  void Kill();

 private:
  // The thread that started it, which lives as long: to the kernel a child's parent is a thread, and one that
  // is to end with its parent (serve.h) would end with a thread that only passed by.
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
