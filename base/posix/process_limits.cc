#include "base/posix/process_limits.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <new>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr rlim_t kMaxDescriptors = 1 << 20;
constexpr int kLargestReserve = 1024;
constexpr int kReservedPart = 8;  // one in so many
constexpr int kLargestShare = 512;
constexpr int kSharePart = 16;

// For code, heaps (64 MiB for each of some threads) and libraries' buffers.
constexpr uint64_t kEveryProcessBytes = uint64_t{1} << 30;
constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t StackBytes() {
  size_t bytes = 0;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return bytes;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

// What this process has mapped so far.
uint64_t MappedBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(getpagesize());
}

}  // namespace

absl::Status CheckProcessLimits(const ProcessNeeds& needs) {
  if (DescriptorLimit() < needs.descriptors) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "start ", needs.who, ": ", needs.descriptors,
        " open files are needed before the first client connects, and the limit is ", DescriptorLimit(),
        "; raise the limit (`ulimit -n`, or LimitNOFILE= of the systemd unit)"));
  }
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) != 0) return ErrnoStatus(errno, "get", "the limit of address space");
  // The limit is on address space, so that what libraries have mapped by now counts, too.
  const uint64_t needed = MappedBytes() + kEveryProcessBytes + needs.memory_bytes +
                          static_cast<uint64_t>(needs.threads) * StackBytes();
  if (space.rlim_cur == RLIM_INFINITY || space.rlim_cur >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "start ", needs.who, ": pools of ", needs.memory_bytes / kMiB, " MiB and up to ", needs.threads,
      " threads need ", needed / kMiB, " MiB, and the limit of address space is ", space.rlim_cur / kMiB,
      " MiB; raise the limit (`ulimit -v`, or LimitAS= of the systemd unit), or make the pools smaller (to "
      "limit the memory in use, set MemoryMax= of a control group)"));
}

void ExitWhenOutOfMemory() {
  // The handler must not allocate, so it neither logs nor formats.
  std::set_new_handler([] {
    constexpr std::string_view kMessage =
        "tensorcast: RESOURCE_EXHAUSTED: allocate memory: the system has no more memory for this process; "
        "raise the limit of address space (ulimit -v), give the host more memory, or make the pools "
        "smaller\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
    _exit(kOutOfMemoryExitCode);
  });
}

absl::Status RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "get", "the limit of open files");
  const rlim_t wanted = std::min(limit.rlim_max, kMaxDescriptors);
  if (limit.rlim_cur >= wanted) return absl::OkStatus();
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "raise the limit of open files to", absl::StrCat(wanted));
}

int DescriptorLimit() {
  rlimit limit{};
  // It fails for no argument that is possible here; nothing is reserved then.
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
}

int DescriptorReserve() { return std::min(DescriptorLimit() / kReservedPart, kLargestReserve); }

bool IsReserved(int fd, DescriptorUser user) {
  // The limit is read each time, since it may be changed from outside (prlimit) while the process runs.
  const int share = std::min(DescriptorLimit() / kSharePart, kLargestShare);
  return fd >= DescriptorLimit() - DescriptorReserve() - static_cast<int>(user) * share;
}

UniqueFd SpareDescriptor::Accept(int listener) {
  // Between these two calls another thread may take the number. Accept then fails, and the peer waits for the
  // next try.
  spare_ = UniqueFd();
  return UniqueFd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

bool SpareDescriptor::Restore() {
  if (!spare_) spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return static_cast<bool>(spare_);
}

}  // namespace tensorcast
