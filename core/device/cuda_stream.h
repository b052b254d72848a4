// Streams of the cuda backend, and what its calls need. Private to it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "core/device/allocation_table.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// A device address as CUDA takes it.
inline void* CudaPointer(DevicePtr pointer) {
  // The host never reads through it, so the optimizer loses nothing by not knowing where it points.
  return reinterpret_cast<void*>(pointer.address);  // NOLINT(performance-no-int-to-ptr)
}

// Makes `device` the thread's current one while it lives. Touching CUDA without one would bring up device 0's
// context in threads that have nothing to do with device 0.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  int previous_ = -1;
  absl::Status status_;
};

// `allocations` must outlive the stream.
absl::StatusOr<std::unique_ptr<Stream>> MakeCudaStream(int device, const AllocationTable& allocations);

}  // namespace tensorcast
