// The GPU kernel for Stream::Digest. The cuda backend launches the kernel. The stand-in for the CUDA runtime
// (tests/stand_ins) runs the kernel on the host. A build without nvcc has no kernel. Private to this folder
// and to the stand-in.
#pragma once

#include <cstdint>

#include "core/device/xxh3.h"

namespace tensorcast {

inline constexpr int kMaxDigestsAtOnce = 128;

// The kernel's only parameter. All addresses are in the memory of the device that runs the kernel.
struct DigestBatch {
  struct Range {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };
  Range ranges[kMaxDigestsAtOnce];
  uint64_t digests = 0;  // address of the results: xxh3::kDigestBytes for each range
};

// The kernel's name as CUDA knows it.
inline constexpr char kDigestKernelName[] = "TensorCastDigest";

// The argument for cudaLaunchKernel. Launch one thread block of xxh3::kLanes threads for each range. nullptr
// if this build has no kernel.
const void* DigestKernel();

// The min compute capability of a device that can run this build's kernels, such as 75 for 7.5; INT_MAX if
// the build has no kernels.
int MinKernelCapability();

}  // namespace tensorcast
