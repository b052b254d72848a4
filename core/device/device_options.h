// Options for the GPUs of a node, and the function that opens them. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/config_reader.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

struct DeviceOptions {
  std::string runtime = "auto";  // "cuda", "none", "fake"; "auto" means cuda if there is a GPU, else none
  int fake_devices = 1;
  uint64_t fake_device_bytes = uint64_t{1} << 30;  // of each fake device

  void FromConfig(ConfigReader& config) {
    config.Read("daemon.device_runtime", runtime);
    config.Read("daemon.fake_devices", fake_devices);
    config.Read("daemon.fake_device_memory", fake_device_bytes);
  }
  void Validate(Findings& findings) const;
};

// INVALID_ARGUMENT for an unknown name of a runtime; "cuda" and "fake" give the errors of their backend.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenDevices(const DeviceOptions& options);

}  // namespace tensorcast
