// model.safetensors.index.json: which shard of a model holds which tensor. For this folder's own use.
// Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace tensorcast {

struct SafetensorsIndex {
  // Tensor name -> shard file, a path inside the model's directory with neither "." nor ".." in it.
  absl::flat_hash_map<std::string, std::string> weight_map;
};

// INVALID_ARGUMENT unless the text is a JSON object with one weight_map, which is not empty and maps names to
// such paths. The rest of the document must be valid JSON and is ignored.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json);

}  // namespace tensorcast
