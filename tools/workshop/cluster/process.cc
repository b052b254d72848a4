#include "tools/workshop/cluster/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <deque>
#include <fstream>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/steady_time.h"

extern char** environ;

namespace tensorcast {
namespace {

int PollTimeoutMs(SteadyTime deadline) {
  if (deadline == SteadyTime::InfiniteFuture()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(deadline - SteadyNow(), absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1'000'000'000));
}

// Everything exec needs, built before the fork: the child may only make async-signal-safe calls.
struct ChildPlan {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  std::vector<char*> argv;
  std::vector<char*> envp;
  UniqueFd log;
  UniqueFd network_namespace;
  UniqueFd ready_write;
};

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// /sys shows the interfaces of the namespace it was mounted in, and UCX looks its devices up there.
bool EnterNetwork(int network_namespace) {
  return setns(network_namespace, CLONE_NEWNET) == 0 && unshare(CLONE_NEWNS) == 0 &&
         mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) == 0 &&
         mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
}

// Between fork and exec, in a process that lost its other threads with whatever locks they held: system
// calls only, nothing that allocates.
[[noreturn]] void RunChild(const ChildPlan& plan, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above took effect.
  if (getppid() != parent) _exit(127);
  // A group of its own: Ctrl-C reaches the parent alone, which then stops its children in order.
  setpgid(0, 0);
  // The parent blocks the signals that its own thread waits for; a program starts with none blocked.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.network_namespace && !EnterNetwork(plan.network_namespace.get())) _exit(126);
  if (plan.log) {
    dup2(plan.log.get(), STDOUT_FILENO);
    dup2(plan.log.get(), STDERR_FILENO);
  }
  // All descriptors close at exec; this one is the child's to write its ready line into.
  if (plan.ready_write) fcntl(plan.ready_write.get(), F_SETFD, 0);
  signal(SIGPIPE, SIG_DFL);
  execve(plan.argv[0], plan.argv.data(), plan.envp.data());
  _exit(127);
}

absl::StatusOr<UniqueFd> Open(const std::string& path, int flags, mode_t mode = 0) {
  UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!fd) return ErrnoStatus(errno, "open", path);
  return fd;
}

}  // namespace

absl::StatusOr<std::string> OwnBinary() {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length <= 0) return ErrnoStatus(errno, "finding", "this program's file (/proc/self/exe)");
  return std::string(self, length);
}

std::string FileTail(const std::string& path, size_t lines) {
  std::ifstream file(path);
  std::deque<std::string> tail;
  for (std::string line; std::getline(file, line);) {
    tail.push_back(line);
    if (tail.size() > lines) tail.pop_front();
  }
  return absl::StrJoin(tail, "\n");
}

// All that allocates happens before the fork; the child runs RunChild only. The parent's copies of the pipe's
// write end and of the log close when `plan` goes, so the end of the pipe means the end of the child.
absl::StatusOr<std::unique_ptr<Process>> Process::Start(const ProcessOptions& options) {
  ChildPlan plan;
  plan.arguments = options.argv;
  UniqueFd ready_read;
  if (options.ready_pipe) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2", "ready pipe");
    ready_read = UniqueFd(ends[0]);
    plan.ready_write = UniqueFd(ends[1]);
    plan.arguments.push_back("--ready-fd");
    plan.arguments.push_back(std::to_string(ends[1]));
  }
  for (char** variable = environ; *variable != nullptr; ++variable) plan.environment.emplace_back(*variable);
  // Later entries win in getenv only if the earlier ones are gone.
  for (const auto& [name, value] : options.environment) {
    const std::string prefix = name + "=";
    std::erase_if(plan.environment, [&](const std::string& entry) { return entry.starts_with(prefix); });
    plan.environment.push_back(prefix + value);
  }
  if (!options.log_path.empty()) {
    TC_ASSIGN_OR_RETURN(plan.log, Open(options.log_path, O_WRONLY | O_CREAT | O_APPEND, 0644));
  }
  if (!options.network_namespace.empty()) {
    TC_ASSIGN_OR_RETURN(plan.network_namespace, Open(options.network_namespace, O_RDONLY));
  }
  plan.argv = Pointers(plan.arguments);
  plan.envp = Pointers(plan.environment);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork", options.argv[0]);
  if (pid == 0) RunChild(plan, parent);

  // Can be polled, and never names another process, as a number that was used again would.
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    const absl::Status status = ErrnoStatus(errno, "watch", options.argv[0]);
    // Nothing could wait for it with a deadline.
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
  return std::unique_ptr<Process>(
      new Process(pid, std::move(pidfd), std::move(ready_read), options.argv[0], options.log_path));
}

Process::Process(pid_t pid, UniqueFd pidfd, UniqueFd ready, std::string name, std::string log_path)
    : pid_(pid),
      pidfd_(std::move(pidfd)),
      ready_(std::move(ready)),
      name_(std::move(name)),
      log_path_(std::move(log_path)) {}

Process::~Process() {
  if (reaped_) return;
  kill(pid_, SIGKILL);
  // One that a test had stopped is let go, to die.
  kill(pid_, SIGCONT);
  (void)Wait(SteadyTime::InfiniteFuture());
}

absl::StatusOr<std::string> Process::WaitReady(SteadyTime deadline) {
  std::string line;
  while (true) {
    pollfd poll_fd{ready_.get(), POLLIN, 0};
    const int ready = poll(&poll_fd, 1, PollTimeoutMs(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          name_, " (pid ", pid_, ") did not become ready; its log ends:\n", FileTail(log_path_, 20)));
    }
    char buffer[512];
    const ssize_t bytes = read(ready_.get(), buffer, sizeof(buffer));
    // All ends for writing are closed: the process has ended.
    if (bytes <= 0) {
      return absl::UnavailableError(absl::StrCat(
          name_, " (pid ", pid_, ") ended before it was ready; its log ends:\n", FileTail(log_path_, 20)));
    }
    line.append(buffer, bytes);
    if (const size_t end = line.find('\n'); end != std::string::npos) return line.substr(0, end);
  }
}

absl::Status Process::Signal(int signal_number) {
  if (reaped_) return absl::FailedPreconditionError(absl::StrCat(name_, " has ended"));
  if (kill(pid_, signal_number) != 0) return ErrnoStatus(errno, "kill", name_);
  // On a busy machine its other threads may go on until the one that takes the signal runs.
  siginfo_t ignored;
  while (signal_number == SIGSTOP && waitid(P_PID, pid_, &ignored, WSTOPPED | WEXITED | WNOWAIT) != 0) {
    if (errno != EINTR) return ErrnoStatus(errno, "wait for", name_);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Process::Wait(SteadyTime deadline) {
  if (reaped_) return exit_code_;
  while (true) {
    pollfd poll_fd{pidfd_.get(), POLLIN, 0};
    const int ready = poll(&poll_fd, 1, PollTimeoutMs(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return absl::DeadlineExceededError(absl::StrCat(name_, " (pid ", pid_, ") still runs"));
    break;
  }
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0) {
    if (errno != EINTR) return ErrnoStatus(errno, "waitpid", name_);
  }
  reaped_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

absl::StatusOr<int> Process::Stop(absl::Duration grace) {
  if (reaped_) return exit_code_;
  TC_RETURN_IF_ERROR(Signal(SIGTERM));
  absl::StatusOr<int> code = Wait(SteadyNow() + grace);
  if (code.ok()) return code;
  TC_RETURN_IF_ERROR(Signal(SIGKILL));
  return Wait(SteadyTime::InfiniteFuture());
}

bool Process::running() const {
  if (reaped_) return false;
  pollfd poll_fd{pidfd_.get(), POLLIN, 0};
  return poll(&poll_fd, 1, 0) == 0;
}

}  // namespace tensorcast
