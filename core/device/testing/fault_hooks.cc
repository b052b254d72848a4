#include "core/device/testing/fault_hooks.h"

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "base/status.h"

namespace tensorcast {
namespace {

class FaultHooks final : public FakeDeviceHooks {
 public:
  explicit FaultHooks(std::shared_ptr<DeviceFaults> faults) : faults_(std::move(faults)) {}

  absl::Status BeforeAllocation() override {
    if (!faults_->TakeAllocationFault()) return absl::OkStatus();
    return absl::ResourceExhaustedError("fake device: injected allocation failure");
  }

  absl::Status BeforeCopy(int device) override {
    faults_->AwaitDelay();
    if (faults_->TakePoison()) broken_ |= BitOf(device);
    TC_RETURN_IF_ERROR(CheckHealth(device));
    if (!faults_->TakeCopyFault()) return absl::OkStatus();
    return absl::InternalError("fake device: injected copy failure");
  }

  absl::Status CheckHealth(int device) override {
    if ((broken_ & BitOf(device)) == 0) return absl::OkStatus();
    return absl::InternalError("fake device: broken by an injected fault; use another device");
  }

 private:
  static uint64_t BitOf(int device) { return uint64_t{1} << device; }

  std::atomic<uint64_t> broken_{0};  // a bit a device
  const std::shared_ptr<DeviceFaults> faults_;
};

}  // namespace

std::shared_ptr<FakeDeviceHooks> HooksOf(std::shared_ptr<DeviceFaults> faults) {
  return std::make_shared<FaultHooks>(std::move(faults));
}

}  // namespace tensorcast
