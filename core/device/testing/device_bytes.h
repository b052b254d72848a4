// Functions with which tests fill and read device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"

namespace tensorcast::testing {

// Bytes that depend on the seed and the place.
std::vector<std::byte> Pattern(uint8_t seed, uint64_t bytes);

absl::Status Upload(DeviceRuntime& runtime, DevicePtr destination, const std::vector<std::byte>& bytes);
absl::StatusOr<std::vector<std::byte>> Download(DeviceRuntime& runtime, DevicePtr source, uint64_t bytes);

}  // namespace tensorcast::testing
