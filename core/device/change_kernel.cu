// The change kernel: one thread block for each block of elements, one lane a thread.
#include <cuda_runtime.h>

#include "core/device/change_kernel.h"

namespace tensorcast {

// Its name is kChangeKernelName.
extern "C" __global__ void __launch_bounds__(kChangeLanes)
    TensorCastChange(const __grid_constant__ ChangeBatch batch) {
  ChangeElements(batch.blocks[blockIdx.x], threadIdx.x, kChangeLanes);
}

const void* ChangeKernel() { return reinterpret_cast<const void*>(&TensorCastChange); }

}  // namespace tensorcast
