// The digest kernel, for the code that launches it: the cuda backend, and the stand-in for the CUDA runtime,
// which runs it on the host. A build without nvcc compiles digest_kernel_absent.cc instead. Private to this
// folder and to the stand-in.
#pragma once

#include <cstdint>

#include "core/device/xxh3.h"

namespace tensorcast {

inline constexpr int kMaxDigestsAtOnce = 128;

// The kernel's one parameter: device addresses, all of the device that it runs on.
struct DigestBatch {
  struct Range {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };
  Range ranges[kMaxDigestsAtOnce];
  uint64_t digests = 0;  // address of xxh3::kDigestBytes a range
};

// Its name as CUDA knows it.
inline constexpr char kDigestKernelName[] = "TensorCastDigest";

// The kernel as cudaLaunchKernel takes it: a thread block of xxh3::kLanes for each range. Null: this build
// has none.
const void* DigestKernel();

// The min compute capability of a device that can run the kernel, such as 75 for 7.5; a huge number if this
// build has no kernel.
int MinDigestCapability();

}  // namespace tensorcast
