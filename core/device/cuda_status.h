// CUDA's error codes as statuses. Private to the cuda backend.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace tensorcast {

// OK, or "<operation> <subject>: <CUDA's name and text>; <what to do>". Takes the error out of the thread's
// record, where it would be reported again by the next call that fails or asks. Errors that broke the CUDA
// context itself cannot be cleared: they are INTERNAL, and every later call of the process fails too.
absl::Status CudaStatus(cudaError_t error, std::string_view operation, std::string_view subject);

}  // namespace tensorcast
