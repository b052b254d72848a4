#include "core/device/testing/device_faults.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/testing/shared_file.h"

namespace tensorcast {
namespace {

// Zero bytes, as in a new file, are not faults.
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
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<void> file, testing::OpenSharedFile(path, sizeof(DeviceFaults)));
  return std::static_pointer_cast<DeviceFaults>(file);
}

}  // namespace tensorcast
