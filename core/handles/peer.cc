#include "core/handles/peer.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/posix/unix_peer.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// Linux 6.5 and later; the C library's headers may be older than the kernel.
#ifdef SO_PEERPIDFD
constexpr int kPeerPidfd = SO_PEERPIDFD;
#else
constexpr int kPeerPidfd = 77;
#endif

constexpr int kRequiredSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
constexpr uint64_t kStatBlockBytes = 512;  // the unit of st_blocks

}  // namespace

absl::StatusOr<UniqueFd> OpenPeerProcess(int socket) {
  // The kernel's own pidfd of the peer cannot be fooled by a process id that is used again; older kernels
  // don't have it.
  int raw = -1;
  socklen_t size = sizeof(raw);
  if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &raw, &size) == 0) return UniqueFd(raw);
  TC_ASSIGN_OR_RETURN(const ucred peer, PeerCredentials(socket));
  UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  if (process) return process;
  if (errno == ESRCH) return absl::NotFoundError(absl::StrCat("process ", peer.pid, " is gone"));
  return ErrnoStatus(errno, "watching process", absl::StrCat(peer.pid));
}

absl::Status CheckOfferedMemory(int fd, uint64_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kRequiredSeals) != kRequiredSeals) {
    return absl::InvalidArgumentError(
        "the memory that was offered is not a memfd sealed with F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW; "
        "seal it after the "
        "last writable mapping of it is gone");
  }
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "looking at", "the memory that was offered");
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the memory that was offered has ", info.st_size,
                                                   " bytes where ", bytes, " were announced"));
  }
  struct statfs file_system;
  if (fstatfs(fd, &file_system) != 0) return ErrnoStatus(errno, "looking at", "the memory that was offered");
  // Reading a hole of huge pages when the host has none left is a SIGBUS.
  if (file_system.f_type == HUGETLBFS_MAGIC &&
      static_cast<uint64_t>(info.st_blocks) * kStatBlockBytes < bytes) {
    return absl::InvalidArgumentError(
        "the huge pages that were offered have holes; write all of them before sealing");
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
