#include "base/testing/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/posix/unique_fd.h"
#include "base/status.h"

namespace tensorcast::testing {

absl::StatusOr<std::shared_ptr<void>> OpenSharedFile(const std::string& path, uint64_t bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return ErrnoStatus(errno, "opening a shared file", path);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return ErrnoStatus(errno, "sizing", path);
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "mapping", path);
  return std::shared_ptr<void>(mapping, [bytes](void* mapped) { munmap(mapped, bytes); });
}

}  // namespace tensorcast::testing
