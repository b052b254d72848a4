#include "base/posix/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {
namespace {

// The kernel's usual upper limit (somaxconn): a burst of clients waits instead of being refused.
constexpr int kBacklog = 4096;
constexpr absl::Duration kLockWait = absl::Seconds(5);
constexpr absl::Duration kLockPoll = absl::Milliseconds(10);

// Whether the file still has that name.
bool IsAt(int fd, const std::string& path) {
  struct stat open{};
  struct stat named{};
  return fstat(fd, &open) == 0 && lstat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

// Two daemons that start at once on one path must not both remove the dead socket: the daemon with the lock
// beside it decides. The lock is a file and not the folder, which another process may lock for life.
class PathLock {
 public:
  static absl::StatusOr<PathLock> Take(const std::string& socket_path) {
    const std::string path = socket_path + ".lock";
    for (const SteadyTime deadline = SteadyNow() + kLockWait; SteadyNow() < deadline;) {
      UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
      if (!fd) return ErrnoStatus(errno, "create", path);
      const bool locked = flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
      if (!locked && errno != EWOULDBLOCK && errno != EINTR) return ErrnoStatus(errno, "lock", path);
      // The previous holder removed the file, and the next one may have made another.
      if (locked && IsAt(fd.get(), path)) return PathLock(std::move(fd), path);
      absl::SleepFor(kLockPoll);
    }
    return absl::UnavailableError(absl::StrCat(
        "lock ", path, ": another process holds the lock; end that process, or configure another path"));
  }
  PathLock(PathLock&&) = default;
  ~PathLock() {
    if (fd_) unlink(path_.c_str());  // still locked
  }

 private:
  PathLock(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
};

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "create", "a unix socket");
  return fd;
}

// OK when the path is free, or was left by a dead process and is free now.
absl::Status ClearPath(const std::string& path, const sockaddr_un& address) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, "look at", path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "listen on ", path,
        ": a file that is not a socket has this path; remove the file, or configure another path"));
  }
  TC_ASSIGN_OR_RETURN(UniqueFd probe, NewSocket());
  // EAGAIN: the queue of the listener is full.
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN) {
    return absl::AlreadyExistsError(absl::StrCat(
        "listen on ", path, ": another process listens there; stop that process, or configure another path"));
  }
  if (errno == EACCES) {  // it cannot be told whether a process listens there
    return absl::AlreadyExistsError(
        absl::StrCat("listen on ", path,
                     ": a socket of another user has this path; remove the socket if no process listens "
                     "there, or configure another path"));
  }
  if (errno != ECONNREFUSED) return ErrnoStatus(errno, "probe", path);
  if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, "remove the dead socket", path);
  return absl::OkStatus();
}

absl::Status SetAccess(const std::string& path, const std::vector<gid_t>& groups) {
  mode_t mode = 0600;
  if (groups.size() == 1) {
    mode = 0660;
    if (lchown(path.c_str(), static_cast<uid_t>(-1), groups.front()) != 0) {
      // A user can give files only to its own groups; the server checks the peer's groups on accept.
      if (errno != EPERM) {
        return ErrnoStatus(errno, absl::StrCat("give group ", groups.front(), " access to"), path);
      }
      mode = 0666;
    }
  } else if (groups.size() > 1) {
    mode = 0666;
  }
  if (chmod(path.c_str(), mode) != 0) return ErrnoStatus(errno, "set the mode of", path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<gid_t>> PeerGroups(int socket) {
  // Where the room is too small, the kernel says how much it takes.
  std::vector<gid_t> groups(32);
  while (true) {
    socklen_t size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
      groups.resize(size / sizeof(gid_t));
      return groups;
    }
    if (errno != ERANGE) return ErrnoStatus(errno, "get the groups of", "a unix socket's peer");
    groups.resize(size / sizeof(gid_t));
  }
}

bool Contains(const std::vector<gid_t>& groups, gid_t group) {
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

// In a user namespace (a container) the kernel shows all ids that the namespace does not know as one, and
// that one says nothing. `kind`: "uid" or "gid".
bool MayBeAnybodys(const std::string& kind, uint32_t id) {
  constexpr uint32_t kUsual = 65534;
  constexpr uint64_t kAll = 0xffffffff;  // but the last, which is none
  uint32_t unknown = 0;
  if (!(std::ifstream("/proc/sys/kernel/overflow" + kind) >> unknown)) unknown = kUsual;
  if (id != unknown) return false;
  std::ifstream map("/proc/self/" + kind + "_map");
  uint64_t inside = 0, outside = 0, count = 0;
  const bool knows_all = map >> inside >> outside >> count && inside == 0 && count == kAll;
  return !knows_all;
}

}  // namespace

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("use unix socket \"", path, "\": the path has ",
                                                   path.size(), " bytes; choose a path of 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  // Such a path would name another socket than it says: a pathname ends at its first zero byte.
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("use a unix socket: the path contains a zero byte; remove it");
  }
  path.copy(address.sun_path, path.size());
  return address;
}

// The order: take the lock of the path, remove a dead socket, bind, set the mode, listen. The lock ends with
// this function: from then on the living listener itself keeps other processes away (ClearPath connects to
// it).
absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Listen(const std::string& path,
                                                                   const std::vector<gid_t>& groups) {
  TC_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  TC_ASSIGN_OR_RETURN(const PathLock lock, PathLock::Take(path));
  TC_RETURN_IF_ERROR(ClearPath(path, address));
  TC_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, "bind a unix socket to", path);
  }
  std::unique_ptr<UnixListener> listener(new UnixListener(std::move(fd), path));
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, "look at", path);
  listener->device_ = info.st_dev;
  listener->inode_ = info.st_ino;
  // Before listen: a peer cannot connect yet, so none comes in by the mode that the umask gave.
  TC_RETURN_IF_ERROR(SetAccess(path, groups));
  if (listen(listener->fd(), kBacklog) != 0) return ErrnoStatus(errno, "listen on", path);
  return listener;
}

// A successor may have replaced the file already; its socket has another inode and stays.
UnixListener::~UnixListener() {
  struct stat info;
  if (lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

absl::StatusOr<ucred> PeerCredentials(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoStatus(errno, "get the credentials of", "a unix socket's peer");
  }
  return peer;
}

DescriptorUser DescriptorUserAt(int socket) {
  const absl::StatusOr<ucred> peer = PeerCredentials(socket);
  const bool own = peer.ok() && (peer->uid == 0 || peer->uid == geteuid());
  return own ? DescriptorUser::kOwnUser : DescriptorUser::kLocalUser;
}

absl::Status CheckPeer(int socket, const std::vector<gid_t>& allowed_groups) {
  TC_ASSIGN_OR_RETURN(const ucred peer, PeerCredentials(socket));
  const bool unknown = MayBeAnybodys("uid", peer.uid);
  if (peer.uid == 0 || (peer.uid == geteuid() && !unknown)) return absl::OkStatus();
  const auto allowed = [&](gid_t group) {
    return Contains(allowed_groups, group) && !MayBeAnybodys("gid", group);
  };
  if (allowed(peer.gid)) return absl::OkStatus();
  if (!allowed_groups.empty()) {
    TC_ASSIGN_OR_RETURN(const std::vector<gid_t> groups, PeerGroups(socket));
    if (std::any_of(groups.begin(), groups.end(), allowed)) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("admit user ", peer.uid, unknown ? " (unknown in this container)" : "",
                   " at a unix socket: this process admits only its own user ", geteuid(),
                   ", root and the groups of daemon.handle_groups; run both processes as one user, or add a "
                   "group of user ",
                   peer.uid, " to daemon.handle_groups"));
}

}  // namespace tensorcast
