// The product's kernels, as the stand-in for the CUDA runtime runs them: by the same functions that nvcc
// compiles for GPUs, on the host. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "tests/stand_ins/cuda/happens_before.h"

namespace tensorcast::stand_ins {

// One launch: the device memory that it touches, and its work, which is told where the stand-in finds each of
// these pieces.
struct KernelLaunch {
  std::vector<Access> accesses;
  std::function<void(const std::vector<std::byte*>& pieces)> run;
};

// What the kernel of this name does with these parameters (as cudaLaunchKernel takes them). Nothing: there is
// no such kernel, or it is not meant to be launched with so many threads a block.
std::optional<KernelLaunch> LaunchOf(std::string_view kernel, void** parameters, int blocks, int threads);

}  // namespace tensorcast::stand_ins
