#include "base/posix/space_reserve.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/log/log.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr uint64_t kLeastBytes = 4096;

}  // namespace

void ReleaseSpace(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return;
  LOG(WARNING) << ErrnoStatus(errno, "remove", path);
}

void ReserveSpace(const std::string& path, uint64_t bytes) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  int error = file ? ENOSPC : errno;
  for (; file && error == ENOSPC && bytes >= kLeastBytes; bytes /= 2) {
    error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  }
  if (error == 0) return;
  LOG(WARNING) << "No room is kept for the next start: " << ErrnoStatus(error, "reserve", path);
  if (file) unlink(path.c_str());
}

}  // namespace tensorcast
