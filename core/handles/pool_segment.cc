#include "core/handles/pool_segment.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kPageSeals = F_SEAL_FUTURE_WRITE | F_SEAL_WRITE;  // one of them is enough

}  // namespace

absl::Status CheckPoolSegment(int fd, uint64_t bytes) {
  // A descriptor that is not of memory has no seals: the call fails, and nothing else is asked of it.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || (seals & kPageSeals) == 0) {
    return absl::InvalidArgumentError(
        "map a segment of a daemon's pool: the descriptor is not a memfd sealed with F_SEAL_SHRINK | "
        "F_SEAL_GROW | F_SEAL_FUTURE_WRITE, so the memory could vanish while it is read; run one release of "
        "client and daemons on this host");
  }
  struct stat segment{};
  if (fstat(fd, &segment) != 0) return ErrnoStatus(errno, "fstat", "a segment of a daemon's pool");
  if (bytes == 0 || static_cast<uint64_t>(segment.st_size) < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("map a segment of a daemon's pool: the segment has ", segment.st_size, " bytes, and ",
                     bytes, " were announced; run one release of client and daemons on this host"));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
