// The GPUs of tests with real processes: those of the stand-in for the CUDA runtime, so that what runs is the
// product's CUDA code; where the build had no CUDA toolkit, the fake devices.
//
// Every node has two of its own, and every client sees all of them, as processes of one host would.
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

// The build of the program that has them.
std::string BinaryWithGpus();
// As that one, with faults that a process finds by kDeviceFaultsVariable.
std::string BinaryWithGpuFaults();
// For the configuration and the environment of a node's daemon.
std::vector<std::string> GpuSettings();
std::vector<std::pair<std::string, std::string>> GpuEnvironment(int node);
// For a client in this process.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenClientGpus();

}  // namespace tensorcast::stand_ins
