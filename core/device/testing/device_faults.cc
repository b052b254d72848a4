#include "core/device/testing/device_faults.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {
namespace {

// Zero bytes, as in a new file, are no faults.
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// Counts one fault down; true when there was one.
bool TakeFault(std::atomic<int>& left) {
  int count = left.load();
  while (count > 0) {
    if (left.compare_exchange_weak(count, count - 1)) return true;
  }
  return false;
}

}  // namespace

bool DeviceFaults::TakeAllocationFault() { return TakeFault(fail_allocations); }
bool DeviceFaults::TakeCopyFault() { return TakeFault(fail_copies); }
bool DeviceFaults::TakePoison() { return TakeFault(poison_copies); }

void DeviceFaults::AwaitDelay() {
  if (copy_delay_ns.load() == 0) return;
  ++delayed_copies;
  const auto start = SteadyNow();
  while (SteadyNow() - start < absl::Nanoseconds(copy_delay_ns.load())) {
    absl::SleepFor(absl::Microseconds(200));
  }
  --delayed_copies;
}

absl::StatusOr<std::shared_ptr<DeviceFaults>> OpenDeviceFaults(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return ErrnoStatus(errno, "opening the devices' faults", path);
  if (ftruncate(fd.get(), sizeof(DeviceFaults)) != 0) return ErrnoStatus(errno, "sizing", path);
  void* const mapping = mmap(nullptr, sizeof(DeviceFaults), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "mapping", path);
  return std::shared_ptr<DeviceFaults>(static_cast<DeviceFaults*>(mapping),
                                       [](DeviceFaults* faults) { munmap(faults, sizeof(DeviceFaults)); });
}

}  // namespace tensorcast
