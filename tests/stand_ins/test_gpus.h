// The GPUs of tests with real processes: those of the stand-in for the CUDA runtime, so that the product's
// CUDA code runs; without a CUDA toolkit in the build, the fake devices.
//
// Every node has two GPUs of its own, and every client sees all GPUs, like processes of one host.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"

namespace tensorcast::stand_ins {

inline constexpr int kGpusPerNode = 2;
inline constexpr uint64_t kBytesPerGpu = uint64_t{128} << 20;

// The program built with these GPUs.
std::string BinaryWithGpus();
// The same, with faults that a process finds by kDeviceFaultsVariable.
std::string BinaryWithGpuFaults();
// For the configuration and the environment of a node's daemon.
std::vector<std::string> GpuSettings();
std::vector<std::pair<std::string, std::string>> GpuEnvironment(int node);
// For a client in this process.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenClientGpus();

}  // namespace tensorcast::stand_ins
