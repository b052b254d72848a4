// Compares tensors with a safetensors model on disk, byte for byte, by a way of reading of its own: the judge
// of the demo and the end-to-end tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/memory/host_pool.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast {

// Calls `read` for each tensor of the model and compares what it gives with the file. Returns the bytes
// compared; DATA_LOSS names the first tensor and byte that differ.
absl::StatusOr<uint64_t> CompareWithModel(
    const std::string& model_path, const std::function<absl::StatusOr<ConstHostSpan>(const Tensor&)>& read);

}  // namespace tensorcast
