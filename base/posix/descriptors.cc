#include "base/posix/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr rlim_t kMostDescriptors = 1 << 20;
constexpr int kLargestReserve = 1024;
constexpr int kReservedPart = 8;  // one in so many

}  // namespace

absl::Status RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return ErrnoStatus(errno, "asking for", "the limit of open files");
  }
  const rlim_t wanted = std::min(limit.rlim_max, kMostDescriptors);
  if (limit.rlim_cur >= wanted) return absl::OkStatus();
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "raising the limit of open files to", absl::StrCat(wanted));
}

int DescriptorLimit() {
  rlimit limit{};
  // It fails for no argument that is possible here; nothing is reserved then.
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
}

int DescriptorReserve() { return std::min(DescriptorLimit() / kReservedPart, kLargestReserve); }

bool IsReserved(int fd) { return fd >= DescriptorLimit() - DescriptorReserve(); }

UniqueFd SpareDescriptor::Accept(int listener) {
  spare_ = UniqueFd();
  return UniqueFd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

bool SpareDescriptor::Restore() {
  if (!spare_) spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return static_cast<bool>(spare_);
}

}  // namespace tensorcast
