#include "core/device/testing/device_faults.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

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

class FaultHooks final : public FakeDeviceHooks {
 public:
  explicit FaultHooks(std::shared_ptr<FakeDeviceFaults> faults) : faults_(std::move(faults)) {}

  absl::Status BeforeAllocation() override {
    if (!TakeFault(faults_->fail_allocations)) return absl::OkStatus();
    return absl::ResourceExhaustedError("fake device: injected allocation failure");
  }

  absl::Status BeforeCopy() override {
    WaitOutDelay();
    if (!TakeFault(faults_->fail_copies)) return absl::OkStatus();
    return absl::InternalError("fake device: injected copy failure");
  }

 private:
  // The delay is read again and again, so that a test can hold a copy up and let it go.
  void WaitOutDelay() {
    if (faults_->copy_delay_ns.load() == 0) return;
    ++faults_->delayed_copies;
    const auto start = SteadyNow();
    while (SteadyNow() - start < absl::Nanoseconds(faults_->copy_delay_ns.load())) {
      absl::SleepFor(absl::Microseconds(200));
    }
    --faults_->delayed_copies;
  }

  const std::shared_ptr<FakeDeviceFaults> faults_;
};

}  // namespace

std::shared_ptr<FakeDeviceHooks> HooksOf(std::shared_ptr<FakeDeviceFaults> faults) {
  return std::make_shared<FaultHooks>(std::move(faults));
}

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
