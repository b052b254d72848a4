// Page-locked host memory in whole pages, for small amounts: the results of kernels, and lists that kernels
// read. Page-locking is slow, so reuse the memory. Movable; thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

class PageLockedMemory {
 public:
  // `devices` must outlive the memory. REQUIRES: bytes > 0.
  static absl::StatusOr<PageLockedMemory> Create(DeviceRuntime* devices, uint64_t bytes);
  PageLockedMemory(PageLockedMemory&& other) noexcept;
  PageLockedMemory& operator=(PageLockedMemory&&) = delete;
  // REQUIRES: no device uses the memory.
  ~PageLockedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  PageLockedMemory(DeviceRuntime* devices, std::span<std::byte> bytes) : devices_(devices), bytes_(bytes) {}

  DeviceRuntime* const devices_;
  std::span<std::byte> bytes_;  // empty after a move
};

}  // namespace tensorcast
