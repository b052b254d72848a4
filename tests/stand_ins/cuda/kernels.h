// The product's kernels in the stand-in for the CUDA runtime: the host runs the same functions that nvcc
// compiles for GPUs. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "tests/stand_ins/cuda/happens_before.h"

namespace tensorcast::stand_ins {

// One launch: the memory that it touches, at the device's addresses, and its work, which gets the stand-in's
// address for each of these pieces.
struct KernelLaunch {
  std::vector<Access> accesses;
  std::function<void(const std::vector<std::byte*>& pieces)> run;
};

// The launch of this kernel with these parameters (as cudaLaunchKernel takes them). nullopt: the kernel does
// not exist, or does not allow this number of threads per block.
std::optional<KernelLaunch> LaunchOf(std::string_view kernel, void** parameters, int blocks, int threads);

}  // namespace tensorcast::stand_ins
