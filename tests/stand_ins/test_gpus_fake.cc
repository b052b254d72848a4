// For builds without a CUDA toolkit.
#include "absl/strings/str_cat.h"
#include "core/device/fake_device.h"
#include "tests/stand_ins/test_gpus.h"

namespace tensorcast::stand_ins {

std::string BinaryWithGpus() { return TENSORCAST_BINARY; }
std::string BinaryWithGpuFaults() { return TENSORCAST_WITH_DEVICE_FAULTS; }

std::vector<std::string> GpuSettings() {
  return {"daemon.device_runtime=fake", absl::StrCat("daemon.fake_devices=", kGpusPerNode),
          absl::StrCat("daemon.fake_device_memory=", kBytesPerGpu)};
}

std::vector<std::pair<std::string, std::string>> GpuEnvironment(int) { return {}; }

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenClientGpus() {
  return CreateFakeRuntime({.device_count = kGpusPerNode, .device_bytes = kBytesPerGpu});
}

}  // namespace tensorcast::stand_ins
