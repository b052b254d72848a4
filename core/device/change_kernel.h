// The GPU kernel for Stream::Change. The cuda backend launches the kernel. The stand-in for the CUDA runtime
// (tests/stand_ins) runs the kernel on the host. A build without nvcc has no kernel. Private to this folder
// and to the stand-in.
#pragma once

#include "core/device/element_changes.h"

namespace tensorcast {

// Max blocks in a batch. A ChangeBatch must fit in 4 KiB, the limit for kernel parameters that all compute
// capabilities allow.
inline constexpr int kMaxChangesAtOnce = 96;
// The number of threads that change one block.
inline constexpr int kChangeLanes = 256;

// The kernel's only parameter. The blocks' elements are in the memory of the device that runs the kernel.
// Their places and operands are in page-locked host memory; the batch has this memory's device addresses.
struct ChangeBatch {
  ElementBlock blocks[kMaxChangesAtOnce];
};
static_assert(sizeof(ChangeBatch) <= 4096);

// The kernel's name as CUDA knows it.
inline constexpr char kChangeKernelName[] = "TensorCastChange";

// The argument for cudaLaunchKernel. Launch one thread block of kChangeLanes threads for each block of the
// batch. nullptr if this build has no kernel.
const void* ChangeKernel();

}  // namespace tensorcast
