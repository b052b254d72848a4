#include "collective/helper/child_process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collective/helper/messages.h"

extern char** environ;

namespace tensorcast::helper {
namespace {

constexpr int kSocket = 3;  // in the child
constexpr char kThisProgram[] = "/proc/self/exe";
// A driver can delay the end of a killed process; after this time the log says so.
constexpr int kSlowEndMs = 10'000;

// At least a moment for any time that is left; -1, for ever, for infinity.
int PollMs(SteadyTime deadline) {
  if (deadline == SteadyTime::InfiniteFuture()) return -1;
  // One millisecond more, since a cut to 0 would turn the end of a wait into a busy loop.
  const int64_t left = absl::ToInt64Milliseconds(std::max(TimeLeft(deadline), absl::ZeroDuration()));
  return static_cast<int>(std::min<int64_t>(left + 1, std::numeric_limits<int>::max()));
}

// The child gets the socket as its only descriptor beside the standard three, no blocked signals, and the
// default handlers.
class SpawnPlan {
 public:
  explicit SpawnPlan(int socket) {
    posix_spawn_file_actions_init(&actions_);
    // dup2 clears close-on-exec on the new number, so the child keeps this descriptor. All above it are
    // closed.
    posix_spawn_file_actions_adddup2(&actions_, socket, kSocket);
    posix_spawn_file_actions_addclosefrom_np(&actions_, kSocket + 1);
    posix_spawnattr_init(&attributes_);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
    // A Ctrl-C is the daemon's, which ends what it does first.
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnPlan() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv) const {
    std::vector<char*> arguments;
    arguments.reserve(argv.size() + 1);
    for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    pid_t pid = -1;
    const int error = posix_spawn(&pid, kThisProgram, &actions_, &attributes_, arguments.data(), environ);
    if (error != 0) return ErrnoStatus(error, "start", argv[0]);
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

// The kernel sends a child its parent's death signal (serve.cc) when the thread that made it ends. So that
// thread lives until the child is gone.
absl::StatusOr<pid_t> ChildProcess::Starter::Start(const std::vector<std::string>& argv, int socket) {
  absl::StatusOr<pid_t> pid;
  absl::Notification started;
  try {
    thread_ = std::thread([&, this] {
      pid = SpawnPlan(socket).Spawn(argv);
      started.Notify();
      child_is_gone_.WaitForNotification();
    });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("start a helper process: no thread can be started (",
                                                     error.what(),
                                                     "); raise the limit of threads (`ulimit -u`)"));
  }
  started.WaitForNotification();
  return pid;
}

ChildProcess::Starter::~Starter() {
  child_is_gone_.Notify();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(std::vector<std::string> argv) {
  int ends[2];
  // SEQPACKET keeps the messages apart and whole, and its end is seen as a message of size 0.
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "make", "a pair of sockets for a helper process");
  }
  UniqueFd ours(ends[0]);
  // Closed here when Start returns: with a copy in this process the end of the child would not close the
  // socket.
  const UniqueFd theirs(ends[1]);
  argv.push_back(absl::StrCat("--fd=", kSocket));
  auto starter = std::make_unique<Starter>();
  TC_ASSIGN_OR_RETURN(const pid_t pid, starter->Start(argv, theirs.get()));
  // Names this process for good, where a number may be given to another one.
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    const absl::Status status = ErrnoStatus(errno, "watch", argv[0]);
    // The number is still this child's: it can be given to another process only after waitpid.
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(std::move(starter), pid, std::move(pidfd), std::move(ours)));
}

bool ChildProcess::running() const {
  pollfd end{pidfd_.get(), POLLIN, 0};
  return !reaped_ && poll(&end, 1, 0) == 0;
}

// A message is one packet: it goes whole or not at all. Without waiting, since a process that is asked has
// answered what came before, and so has room.
absl::Status ChildProcess::Send(const std::string& message) {
  if (send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat(ErrnoStatus(errno, "ask", absl::StrCat("helper process ", pid_)).message(),
                   "; transfers go on without NCCL, and if this repeats, check daemon.nccl"));
}

absl::StatusOr<std::string> ChildProcess::Receive(SteadyTime deadline) {
  while (true) {
    // The process's end too: no wait outlasts it.
    std::array<pollfd, 2> waits{{{socket_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}}};
    const int ready = poll(waits.data(), waits.size(), PollMs(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "ask helper process ", pid_,
          ": the process did not answer in time; transfers go on without NCCL, and if this repeats, "
          "check daemon.nccl"));
    }
    // The socket is read also where only the end of the process was told: a last message may have come before
    // it.
    std::string message(kMaxMessageBytes, '\0');
    const ssize_t size = recv(socket_.get(), message.data(), message.size(), MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) {
      return absl::UnavailableError(
          absl::StrCat("ask helper process ", pid_,
                       ": the process has ended; transfers go on without NCCL, and if this repeats, "
                       "check daemon.nccl"));
    }
    message.resize(size);
    return message;
  }
}

void ChildProcess::Interrupt() { syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }

void ChildProcess::Kill() {
  if (reaped_) return;
  Interrupt();
  pollfd end{pidfd_.get(), POLLIN, 0};
  while (true) {
    const int ready = poll(&end, 1, kSlowEndMs);
    if (ready == 1) break;
    LOG_IF(WARNING, ready == 0)
        << "end helper process " << pid_
        << ": the process was killed and has not ended; a driver call may hold the process";
  }
  // The pidfd was readable, so this takes no time. Only from here on the number can be another process's.
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
}

}  // namespace tensorcast::helper
