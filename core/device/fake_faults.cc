#include "core/device/fake_faults.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "core/device/fake_device.h"

namespace tensorcast {

// Zero bytes, as in a new file, are no faults.
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

absl::StatusOr<std::shared_ptr<FakeDeviceFaults>> OpenFakeDeviceFaults(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return ErrnoStatus(errno, "opening the fake devices' faults", path);
  if (ftruncate(fd.get(), sizeof(FakeDeviceFaults)) != 0) return ErrnoStatus(errno, "sizing", path);
  void* const mapping =
      mmap(nullptr, sizeof(FakeDeviceFaults), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "mapping", path);
  return std::shared_ptr<FakeDeviceFaults>(
      static_cast<FakeDeviceFaults*>(mapping),
      [](FakeDeviceFaults* faults) { munmap(faults, sizeof(FakeDeviceFaults)); });
}

}  // namespace tensorcast
