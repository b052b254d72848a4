// Writes Llama-shaped bf16 safetensors models with random weights, for the demo, the benchmarks and the
// tests. The names and shapes are those that the Hugging Face Llama implementation uses (LlamaForCausalLM
// with tied embeddings).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/tensor/tensor.h"

namespace tensorcast {

struct LlamaModelOptions {
  uint64_t bytes = uint64_t{1} << 30;  // approximate; at least a few MiB are written
  int shards = 1;                      // more than one: a folder with model.safetensors.index.json
  uint64_t seed = 1;                   // the same seed and size give the same bytes
  RequestContext context;              // checked at every MiB
};

// The tensors of a model of about `bytes`, in file order.
std::vector<Tensor> LlamaTensors(uint64_t bytes);

inline constexpr uint64_t kMaxLlamaModelBytes = uint64_t{16} << 40;

// Writes to `path`: a file when shards == 1, else a folder, which is made. INVALID_ARGUMENT for a model of
// more than kMaxLlamaModelBytes; RESOURCE_EXHAUSTED, before anything is written, when the disk has too little
// space. Removes a file that cannot be completed, or is no longer wanted.
absl::Status WriteLlamaModel(const std::string& path, const LlamaModelOptions& options);

}  // namespace tensorcast
