// The digest kernel: one thread block a range, which is the team of lanes that xxh3.h asks for.
#include <cuda_runtime.h>

#include "core/device/digest_kernel.h"

namespace tensorcast {
namespace {

struct BlockTeam {
  template <typename Work>
  __device__ void Each(const Work& work) const {
    work(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};

}  // namespace

// Its name is kDigestKernelName.
extern "C" __global__ void __launch_bounds__(xxh3::kLanes)
    TensorCastDigest(const __grid_constant__ DigestBatch batch) {
  __shared__ xxh3::Scratch scratch;
  const DigestBatch::Range& range = batch.ranges[blockIdx.x];
  xxh3::DigestRange(BlockTeam(), reinterpret_cast<const uint8_t*>(range.address), range.bytes, scratch,
                    reinterpret_cast<uint8_t*>(batch.digests) + blockIdx.x * xxh3::kDigestBytes);
}

const void* DigestKernel() { return reinterpret_cast<const void*>(&TensorCastDigest); }

int MinKernelCapability() { return TENSORCAST_LEAST_CAPABILITY; }

}  // namespace tensorcast
