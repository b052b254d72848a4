// Makes a build of the tensorcast program with fake devices that a test can make fail: linked with all of the
// program's own objects into `tensorcast_with_device_faults`, which is not installed. The environment says
// whether a process has faults, and in which file they are.
#include <cstdlib>

#include "absl/log/check.h"
#include "core/device/testing/fault_hooks.h"

namespace tensorcast {

std::shared_ptr<FakeDeviceHooks> HooksOfThisProgram() {
  const char* const path = std::getenv(kDeviceFaultsVariable);
  if (path == nullptr) return nullptr;
  absl::StatusOr<std::shared_ptr<DeviceFaults>> faults = OpenDeviceFaults(path);
  CHECK_OK(faults.status());
  return HooksOf(*std::move(faults));
}

}  // namespace tensorcast
