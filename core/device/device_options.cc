#include "core/device/device_options.h"

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "core/device/fake_device.h"

namespace tensorcast {

void DeviceOptions::Validate(Findings& findings) const {
  // Only where CUDA is asked for by name: with "auto" a host without GPUs is not a fault.
  if (runtime == "cuda") findings.Add("daemon.device_runtime", CreateCudaRuntime().status());
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenDevices(const DeviceOptions& options) {
  const std::string& kind = options.runtime;
  if (kind == "none") return CreateNullRuntime();
  if (kind == "fake") {
    LOG(WARNING) << "using " << options.fake_devices
                 << " fake GPUs; their memory is shared memory of this host";
    return CreateFakeRuntime(
        {.device_count = options.fake_devices, .device_bytes = options.fake_device_bytes});
  }
  if (kind != "auto" && kind != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("open device runtime \"", kind,
                                                   "\": the name is unknown; use auto, cuda, none or fake"));
  }
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> cuda = CreateCudaRuntime();
  if (cuda.ok() || kind == "cuda") return cuda;
  // "auto": a host without a driver or a GPU keeps replicas in host memory and on disk.
  LOG(INFO) << "no GPUs: " << cuda.status().message();
  return CreateNullRuntime();
}

}  // namespace tensorcast
