#include "core/handles/client_descriptors.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/posix/process_limits.h"
#include "base/posix/unix_socket.h"
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

// Whether `fd` is memory that can be mapped and read without surprises: INVALID_ARGUMENT unless it is a memfd
// sealed WRITE | SHRINK | GROW with `bytes` in it.
absl::Status CheckOfferedMemory(int fd, uint64_t bytes) {
  // The seals come first: for a descriptor of anything but memory this fails without asking its file system,
  // which could hang the server's thread. fstat and fstatfs of memory answer at once.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kRequiredSeals) != kRequiredSeals) {
    return absl::InvalidArgumentError(
        "offer memory: the descriptor is not a memfd with the seals F_SEAL_WRITE, F_SEAL_SHRINK and "
        "F_SEAL_GROW; unmap all writable mappings of the memory, then add the seals");
  }
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "check", "the memory that was offered");
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("offer memory: ", bytes,
                                                   " bytes were announced, but the memory has ", info.st_size,
                                                   " bytes; announce the size of the memory"));
  }
  struct statfs file_system;
  if (fstatfs(fd, &file_system) != 0) return ErrnoStatus(errno, "check", "the memory that was offered");
  // Reading a hole of huge pages when the host has none left is a SIGBUS.
  if (file_system.f_type == HUGETLBFS_MAGIC &&
      static_cast<uint64_t>(info.st_blocks) * kStatBlockBytes < bytes) {
    return absl::InvalidArgumentError(
        "offer memory: some huge pages of the memory were never written; write all pages before sealing the "
        "memory");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> OpenPeerProcess(int socket) {
  // The kernel's own pidfd of the peer cannot be fooled by a process id that is used again; older kernels
  // don't have it.
  int raw = -1;
  socklen_t size = sizeof(raw);
  if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &raw, &size) == 0) return UniqueFd(raw);
  TC_ASSIGN_OR_RETURN(const ucred peer, PeerCredentials(socket));
  if (peer.pid == 0) {
    return absl::FailedPreconditionError(
        "attach to device memory: the client is in a PID namespace that the daemon cannot see, and before "
        "Linux 6.5 the daemon then cannot notice when the client ends; run the client in the daemon's PID "
        "namespace (in a container: --pid=host), or attach to host memory");
  }
  UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  if (process) return process;
  if (errno == ESRCH) {
    return absl::NotFoundError(
        absl::StrCat("watch process ", peer.pid, ": the process has ended; start the client again"));
  }
  return ErrnoStatus(errno, "watch process", absl::StrCat(peer.pid));
}

absl::Status CheckNotReserved(const UniqueFd& fd, const UniqueFd& socket) {
  if (!IsReserved(fd.get(), DescriptorUserAt(socket.get()))) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "keep a client's descriptor: the daemon has no file descriptor left (limit ", DescriptorLimit(),
      "); raise the daemon's limit of open files (`ulimit -n`), or detach some clients"));
}

absl::StatusOr<UniqueFd> TakeMemory(ForeignFds fds, uint64_t bytes, const UniqueFd& socket) {
  if (fds.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("offer memory: ", fds.size(),
                     " descriptors came with the frame instead of 1; send the memfd as the only descriptor"));
  }
  // While a check may fail, the descriptor stays among the foreign ones, which close on other threads. A
  // checked one is memory, so closing it never waits.
  TC_RETURN_IF_ERROR(CheckNotReserved(fds.fds().front(), socket));
  TC_RETURN_IF_ERROR(CheckOfferedMemory(fds.fds().front().get(), bytes));
  return std::move(std::move(fds).Take().front());
}

absl::Status CheckMayBeRead(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoStatus(errno, "check", "a file that was offered");
  if ((flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_WRONLY) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "offer a file: the descriptor is not open for reading; open the file with O_RDONLY");
}

}  // namespace tensorcast
