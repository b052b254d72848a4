// What every call to CUDA stands on: a device that is current for the thread, errors as statuses, and which
// devices an error has broken for this process. Private to this folder.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// Which devices are broken for this process. A device has one context in a process (its primary one), shared
// by all of its users, and so this is the process's too. Thread-safe.
class BrokenContexts {
 public:
  static BrokenContexts& OfProcess();

  // The first reason stays: what comes later follows from it.
  void Add(int device, const absl::Status& why);
  absl::Status Check(int device) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<int, absl::Status> broken_ ABSL_GUARDED_BY(mutex_);
};

// OK, or "<operation> <subject>: <CUDA's name and text>; <what to do>". Takes the error out of the thread's
// record, where it would be reported again by the next call that fails or asks. One that broke the device's
// context cannot be cleared: it marks the device of the guard.
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
  const int outer_;  // that of the guard around it; -1: none
  int previous_ = -1;
  absl::Status status_;
};

}  // namespace tensorcast
