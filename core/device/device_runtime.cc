#include "core/device/device_runtime.h"

#include "absl/strings/str_cat.h"

namespace tensorcast {

absl::StatusOr<int> DeviceRuntime::FindDevice(std::string_view uuid) const {
  for (const DeviceInfo& device : devices()) {
    if (device.uuid == uuid) return device.ordinal;
  }
  return absl::NotFoundError(absl::StrCat("no device ", uuid, " among the ", devices().size(),
                                          " that this process sees (", backend(), " backend)"));
}

}  // namespace tensorcast
