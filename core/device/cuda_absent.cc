// Stands in for cuda_runtime.cc where the toolkit was not found.
#include "core/device/device_runtime.h"

namespace tensorcast {

absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime() {
  return absl::UnavailableError(
      "open CUDA: this binary was built without CUDA; install the CUDA toolkit, and build TensorCast again");
}

}  // namespace tensorcast
