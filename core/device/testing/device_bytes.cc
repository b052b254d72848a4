#include "core/device/testing/device_bytes.h"

#include <memory>

#include "base/status.h"

namespace tensorcast::testing {

std::vector<std::byte> Pattern(uint8_t seed, uint64_t bytes) {
  std::vector<std::byte> pattern(bytes);
  uint32_t state = seed * 2654435761u;
  for (std::byte& byte : pattern) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return pattern;
}

absl::Status Upload(DeviceRuntime& runtime, DevicePtr destination, const std::vector<std::byte>& bytes) {
  TC_ASSIGN_OR_RETURN(const auto stream, runtime.CreateStream(destination.device));
  const absl::Status enqueued = stream->CopyToDevice(destination, bytes.data(), bytes.size());
  const absl::Status done = stream->Synchronize();
  return enqueued.ok() ? done : enqueued;
}

absl::StatusOr<std::vector<std::byte>> Download(DeviceRuntime& runtime, DevicePtr source, uint64_t bytes) {
  TC_ASSIGN_OR_RETURN(const auto stream, runtime.CreateStream(source.device));
  std::vector<std::byte> result(bytes);
  TC_RETURN_IF_ERROR(stream->CopyToHost(result.data(), source, bytes));
  TC_RETURN_IF_ERROR(stream->Synchronize());
  return result;
}

}  // namespace tensorcast::testing
