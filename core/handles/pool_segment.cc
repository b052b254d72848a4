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
        "map a segment of a daemon's pool: the descriptor is not a memfd with the seals F_SEAL_SHRINK, "
        "F_SEAL_GROW and F_SEAL_FUTURE_WRITE, so another process could remove the memory during a read; run "
        "the same TensorCast release in both processes");
  }
  struct stat segment{};
  if (fstat(fd, &segment) != 0) return ErrnoStatus(errno, "fstat", "a segment of a daemon's pool");
  if (bytes == 0 || static_cast<uint64_t>(segment.st_size) < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("map a segment of a daemon's pool: the segment has ", segment.st_size, " bytes, but ",
                     bytes, " bytes were announced; run the same TensorCast release in both processes"));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
