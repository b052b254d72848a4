// model.safetensors.index.json.
#include "absl/log/check.h"
#include "absl/strings/str_split.h"
#include "core/safetensors/index.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  const absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(input);
  if (!index.ok()) {
    CHECK(absl::IsInvalidArgument(index.status())) << index.status();
    return;
  }
  CHECK(!index->weight_map.empty());
  for (const auto& [tensor, shard] : index->weight_map) {
    CHECK_EQ(shard.find('\0'), std::string::npos) << tensor;
    for (std::string_view part : absl::StrSplit(shard, '/')) {
      CHECK(!part.empty() && part != "." && part != "..") << tensor << " in " << shard;
    }
  }
}

std::vector<std::string> Seeds() {
  return {
      R"({"metadata":{"total_size":12,"x":[1,-2.5e3,null,true,{"y":"z"}]},"weight_map":{"a":"s-1.safetensors","b":"s-2.safetensors"}})",
      R"({"weight_map":{"a":"sub/s.safetensors"}})",
      R"({"weight_map":{"a":"../s.safetensors","b":"/etc/passwd","c":"./x","d":"x//y","e":"\u0000"}})",
      R"({"weight_map":{},"weight_map":{"a":["b"]}})",
  };
}

}  // namespace tensorcast::fuzz
