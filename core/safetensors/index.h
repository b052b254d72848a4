// model.safetensors.index.json, which maps each tensor of a model to its shard. Private to this folder.
// Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace tensorcast {

struct SafetensorsIndex {
  // Tensor name -> shard file: a path below the model's folder without "." and "..".
  absl::flat_hash_map<std::string, std::string> weight_map;
};

// INVALID_ARGUMENT unless the text is a JSON object with exactly one weight_map, which has at least one entry
// and only paths as in SafetensorsIndex. The rest of the document must be valid JSON and is ignored.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json);

}  // namespace tensorcast
