#include "daemon/keeper/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/posix/process_limits.h"
#include "base/posix/unix_socket.h"
#include "base/status.h"

extern char** environ;

namespace tensorcast::daemon {
namespace {

// A message has a letter before the name and a zero byte at least after it; the rest is padding. All messages
// have one size, so that their borders are known on a stream socket.
constexpr size_t kMessageBytes = kMaxKeptName + 8;
constexpr int kReadyFd = 3;  // in the keeper
// The daemon waits for so long until a keeper that it started listens.
constexpr int kReadyMs = 5000;
// The keeper is this program itself, by the file that runs even where that was replaced on disk.
constexpr char kProgram[] = "/proc/self/exe";
constexpr timeval kSendTimeout = {.tv_sec = 1, .tv_usec = 0};

struct Message {
  char what = 0;  // 0: the other end has gone
  std::string name;
  UniqueFd fd;
};

union Control {
  cmsghdr aligned;
  char bytes[CMSG_SPACE(sizeof(int))];
};

// One write, which the kernel takes as a whole: a sender that is killed leaves no half of it.
absl::Status SendMessage(int socket, char what, std::string_view name, int fd) {
  CHECK_LE(name.size(), kMaxKeptName);
  std::array<char, kMessageBytes> bytes{};
  bytes[0] = what;
  std::ranges::copy(name, bytes.begin() + 1);
  iovec iov{bytes.data(), bytes.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size()) ? absl::OkStatus()
                                                    : ErrnoStatus(errno, "send to", "the keeper's socket");
}

Message ReceiveMessage(int socket) {
  std::array<char, kMessageBytes> bytes{};
  iovec iov{bytes.data(), bytes.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t size;
  do {
    size = recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  Message received;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  // The descriptor is taken before the size is looked at: one that came with a part of a message must be
  // closed, too.
  if (size > 0 && header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    received.fd = UniqueFd(fd);
  }
  // Less than a message means that the sender has gone.
  if (size != static_cast<ssize_t>(bytes.size())) return received;
  received.what = bytes[0];
  received.name.assign(bytes.data() + 1, strnlen(bytes.data() + 1, kMaxKeptName));
  return received;
}

using Held = absl::flat_hash_map<std::string, UniqueFd>;

// What one message asks for; false when the daemon has gone.
bool Obey(int socket, Held& held) {
  Message message = ReceiveMessage(socket);
  switch (message.what) {
    case 'P':
      // The descriptor is missing where this process has no room for another one; then the name is not held.
      if (message.fd) held.insert_or_assign(std::move(message.name), std::move(message.fd));
      return true;
    case 'D':
      held.erase(message.name);
      return true;
    // All descriptors are sent, then an end: without the E the daemon knows that it did not get all.
    case 'L':
      for (const auto& [name, fd] : held) {
        if (!SendMessage(socket, 'N', name, fd.get()).ok()) return false;
      }
      return SendMessage(socket, 'E', "", -1).ok();
    default:
      return false;
  }
}

bool Readable(int fd) {
  pollfd poller{fd, POLLIN, 0};
  return poll(&poller, 1, 0) > 0;
}

}  // namespace

absl::StatusOr<UniqueFd> Duplicate(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return ErrnoStatus(errno, "duplicate", "a descriptor for the keeper");
  return copy;
}

absl::Status RunKeeper(const std::string& socket, absl::Duration linger, int ready_fd) {
  TC_RETURN_IF_ERROR(RaiseDescriptorLimit());
  // The program blocks it, for servers that end in their own time. There is nothing to be done here.
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &end, nullptr);
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<UnixListener> listener, UnixListener::Listen(socket, {}));
  // The daemon that started this keeper waits for the end of the pipe, which means that the socket listens.
  close(ready_fd);
  Held held;
  UniqueFd daemon;
  while (true) {
    // Without a daemon the keeper waits for one only so long; with one it waits for ever.
    std::array<pollfd, 2> pollers = {pollfd{listener->fd(), POLLIN, 0}, pollfd{daemon.get(), POLLIN, 0}};
    const int timeout_ms = daemon ? -1 : static_cast<int>(absl::ToInt64Milliseconds(linger));
    const int events = poll(pollers.data(), pollers.size(), timeout_ms);
    if (events < 0 && errno != EINTR) return ErrnoStatus(errno, "poll", "the keeper's socket");
    if (events == 0) return absl::OkStatus();
    // The daemon has gone, however it ended. What it gave stays, for the next one.
    if (daemon && pollers[1].revents != 0 && !Obey(daemon.get(), held)) daemon = UniqueFd();
    if (pollers[0].revents == 0) continue;
    // A new daemon takes the place of the previous one, after what that sent was heard.
    UniqueFd next(accept4(listener->fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!next || !CheckPeer(next.get(), {}).ok()) continue;
    while (daemon && Readable(daemon.get()) && Obey(daemon.get(), held)) {
    }
    daemon = std::move(next);
  }
}

absl::Status KeeperClient::StartKeeper() {
  // The previous one, if it was ours and has ended.
  if (keeper_pid_ > 0) waitpid(keeper_pid_, nullptr, WNOHANG);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make", "a pipe");
  const UniqueFd ready(ends[0]);
  UniqueFd theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // A reader of the daemon's output sees its end although the keeper still runs.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), kReadyFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kReadyFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  // What ends the daemon's session or its group is not meant for the keeper.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  std::vector<std::string> argv = argv_;
  argv.push_back(absl::StrCat("--ready-fd=", kReadyFd));
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const int error = posix_spawn(&keeper_pid_, kProgram, &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, "start", "a keeper");
  theirs = UniqueFd();
  // It closes its end when it listens, or ends.
  pollfd poller{ready.get(), POLLIN, 0};
  poll(&poller, 1, kReadyMs);
  return absl::OkStatus();
}

absl::Status KeeperClient::Connect() {
  TC_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(socket_path_));
  UniqueFd made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made) return ErrnoStatus(errno, "make", "a socket");
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof(kSendTimeout));
  setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &kSendTimeout, sizeof(kSendTimeout));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  // No keeper answers, so one is started. Two daemons cannot do so at once, since the state folder is locked
  // (NodeState).
  if (connect(made.get(), to, sizeof(address)) != 0) {
    TC_RETURN_IF_ERROR(StartKeeper());
    if (connect(made.get(), to, sizeof(address)) != 0) {
      return ErrnoStatus(errno, "connect to the keeper at", socket_path_);
    }
  }
  TC_RETURN_IF_ERROR(CheckPeer(made.get(), {}));
  socket_ = std::move(made);
  return absl::OkStatus();
}

absl::Status KeeperClient::Send(char what, std::string_view name, int fd) {
  if (!socket_) {
    return absl::UnavailableError(
        "send to the keeper: the keeper is not connected; no action is needed, the daemon starts the keeper "
        "again");
  }
  absl::Status sent = SendMessage(socket_.get(), what, name, fd);
  // Mend finds the socket closed, connects again and tells everything anew.
  if (!sent.ok()) socket_ = UniqueFd();
  return sent;
}

absl::StatusOr<std::vector<KeptDescriptor>> KeeperClient::Open() {
  absl::MutexLock lock(&mutex_);
  TC_RETURN_IF_ERROR(Connect());
  TC_RETURN_IF_ERROR(Send('L', "", -1));
  std::vector<KeptDescriptor> kept;
  while (true) {
    Message message = ReceiveMessage(socket_.get());
    if (message.what == 'E') return kept;
    if (message.what != 'N') {
      return absl::UnavailableError(
          "take back the memory that the keeper holds: the keeper ended, or sent nothing for one second; "
          "start this daemon again, and look in the kernel's log for a kill of the keeper");
    }
    if (!message.fd) {
      return absl::UnavailableError(
          "take back the memory that the keeper holds: this process received no file descriptor for a part "
          "of the memory; raise the limit of open files (`ulimit -n`, or LimitNOFILE= of the systemd unit)");
    }
    // The client keeps a descriptor of its own, so that another keeper can be told of it.
    TC_ASSIGN_OR_RETURN(UniqueFd again, Duplicate(message.fd.get()));
    held_.insert_or_assign(message.name, std::move(again));
    kept.push_back({std::move(message.name), std::move(message.fd)});
  }
}

void KeeperClient::Put(const std::string& name, absl::StatusOr<UniqueFd> fd) {
  if (!fd.ok()) {
    LOG(WARNING) << "give the keeper " << name << ": " << fd.status()
                 << "; a restarted daemon will not find this memory";
    return;
  }
  absl::MutexLock lock(&mutex_);
  // What does not arrive now does when the keeper is mended.
  Send('P', name, fd->get()).IgnoreError();
  held_.insert_or_assign(name, *std::move(fd));
  to_drop_.erase(name);
}

void KeeperClient::Drop(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  held_.erase(name);
  // A keeper that this message does not reach may go on, and hold the memory of a segment: Mend tells it.
  if (!Send('D', name, -1).ok()) to_drop_.insert(name);
}

void KeeperClient::Mend() {
  absl::MutexLock lock(&mutex_);
  // It says nothing by itself: what can be read is its end.
  if (socket_ && Readable(socket_.get())) socket_ = UniqueFd();
  if (socket_) return;
  absl::Status mended = Connect();
  // First, so that the keeper does not hold what is gone beside what took its place.
  while (!to_drop_.empty() && mended.ok()) {
    mended = Send('D', *to_drop_.begin(), -1);
    if (mended.ok()) to_drop_.erase(to_drop_.begin());
  }
  for (auto held = held_.begin(); held != held_.end() && mended.ok(); ++held) {
    mended = Send('P', held->first, held->second.get());
  }
  LOG_IF(WARNING, !mended.ok())
      << "start the keeper of the host pool again: " << mended
      << "; this daemon tries again; while no keeper runs, the pool is lost if this daemon ends";
}

}  // namespace tensorcast::daemon
