// The interface of the change kernel for the code that launches the kernel: the cuda backend, and the
// stand-in for the CUDA runtime (tests/stand_ins). The stand-in runs the kernel on the host. A build without
// nvcc has no kernel. Private to this folder and to the stand-in.
#pragma once

#include "core/device/element_changes.h"

namespace tensorcast {

// Max blocks in a batch. A ChangeBatch must fit in 4 KiB: all compute capabilities allow kernel parameters of
// this size.
inline constexpr int kMaxChangesAtOnce = 96;
// The threads that change one block. A block of 65,536 bf16 elements has about 900 changes after a training
// step.
inline constexpr int kChangeLanes = 256;

// The kernel's only parameter. Elements are in the memory of the device that runs the kernel; places and
// operands are in page-locked host memory, at the addresses by which that device reads it.
struct ChangeBatch {
  ElementBlock blocks[kMaxChangesAtOnce];
};
static_assert(sizeof(ChangeBatch) <= 4096);

// The kernel's name as CUDA knows it.
inline constexpr char kChangeKernelName[] = "TensorCastChange";

// The kernel, as the argument for cudaLaunchKernel. Launch one thread block of kChangeLanes threads for each
// block of the batch. nullptr if this build has no kernel.
const void* ChangeKernel();

}  // namespace tensorcast
