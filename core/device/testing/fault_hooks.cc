#include "core/device/testing/fault_hooks.h"

#include <utility>

#include "absl/status/status.h"

namespace tensorcast {
namespace {

class FaultHooks final : public FakeDeviceHooks {
 public:
  explicit FaultHooks(std::shared_ptr<DeviceFaults> faults) : faults_(std::move(faults)) {}

  absl::Status BeforeAllocation() override {
    if (!faults_->TakeAllocationFault()) return absl::OkStatus();
    return absl::ResourceExhaustedError("fake device: injected allocation failure");
  }

  absl::Status BeforeCopy() override {
    faults_->AwaitDelay();
    if (!faults_->TakeCopyFault()) return absl::OkStatus();
    return absl::InternalError("fake device: injected copy failure");
  }

 private:
  const std::shared_ptr<DeviceFaults> faults_;
};

}  // namespace

std::shared_ptr<FakeDeviceHooks> HooksOf(std::shared_ptr<DeviceFaults> faults) {
  return std::make_shared<FaultHooks>(std::move(faults));
}

}  // namespace tensorcast
