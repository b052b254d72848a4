// A device address as CUDA takes it. Private to the cuda backend.
#pragma once

#include "core/device/device_runtime.h"

namespace tensorcast {

inline void* CudaPointer(DevicePtr pointer) {
  // The host never reads through it, so the optimizer loses nothing by not knowing where it points.
  return reinterpret_cast<void*>(pointer.address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace tensorcast
