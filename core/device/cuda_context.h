// Helpers for all calls to CUDA: the thread's current device, errors as statuses, and broken devices.
// Private to this folder.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// The devices that are broken for this process. A process has one BrokenContexts, because all users in a
// process share a device's primary context. Thread-safe.
class BrokenContexts {
 public:
  static BrokenContexts& OfProcess();

  // Keeps the first reason for each device.
  void Add(int device, const absl::Status& why);
  absl::Status Check(int device) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<int, absl::Status> broken_ ABSL_GUARDED_BY(mutex_);
};

// OK, or "<operation> <subject>: <CUDA's name and text>; <remedy>". Clears CUDA's last error of this thread.
// If the error broke the device's context, marks the device of the thread's CudaDeviceGuard as broken.
absl::Status CudaStatus(cudaError_t error, std::string_view operation, std::string_view subject);

// A device address as CUDA takes it.
inline void* CudaPointer(DevicePtr pointer) {
  // The host never reads through this pointer, so the optimizer does not need to know its target.
  return reinterpret_cast<void*>(pointer.address);  // NOLINT(performance-no-int-to-ptr)
}

// Makes `device` the thread's current device during the guard's lifetime. A CUDA call without a guard would
// create the context of device 0.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  const int outer_;  // the device of the enclosing guard; -1 if there is none
  int previous_ = -1;
  absl::Status status_;
};

}  // namespace tensorcast
