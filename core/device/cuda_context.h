// The basis of all calls to CUDA: a guard that sets the thread's current device, errors as statuses, and the
// devices that an error has broken for this process. Private to this folder.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// The devices that are broken for this process. All users in a process share a device's primary context, so
// there is one BrokenContexts for the process. Thread-safe.
class BrokenContexts {
 public:
  static BrokenContexts& OfProcess();

  // Keeps the first reason: later errors follow from it.
  void Add(int device, const absl::Status& why);
  absl::Status Check(int device) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<int, absl::Status> broken_ ABSL_GUARDED_BY(mutex_);
};

// OK, or "<operation> <subject>: <CUDA's name and text>; <remedy>". Clears the error in the thread's record,
// because CUDA would otherwise report it again from a later call. An error that broke the device's context
// cannot be cleared: it marks the current guard's device as broken.
absl::Status CudaStatus(cudaError_t error, std::string_view operation, std::string_view subject);

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
  const int outer_;  // device of the enclosing guard; -1: none
  int previous_ = -1;
  absl::Status status_;
};

}  // namespace tensorcast
