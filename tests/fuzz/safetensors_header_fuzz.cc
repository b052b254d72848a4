// The header of a safetensors file: 8 bytes say how long the data section is, the rest is the JSON.
#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "core/safetensors/safetensors.h"
#include "core/tensor/tensor.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  const uint64_t data_bytes = TakeU64(input);
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(input, data_bytes);
  if (!header.ok()) {
    CHECK(absl::IsInvalidArgument(header.status())) << header.status();
    return;
  }
  uint64_t end = 0;
  for (const SafetensorsHeader::Entry& entry : header->tensors) {
    CHECK_EQ(entry.data.offset, end) << entry.name;
    CHECK_EQ(entry.data.bytes, TensorBytes(entry.dtype, entry.shape).value()) << entry.name;
    end += entry.data.bytes;
  }
  CHECK_EQ(end, data_bytes);
}

std::vector<std::string> Seeds() {
  const auto seed = [](uint64_t data_bytes, std::string_view json) {
    return absl::StrCat(U64Bytes(data_bytes), json);
  };
  return {
      seed(0, "{}"),
      seed(24, R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
               R"("b":{"dtype":"I64","shape":[],"data_offsets":[16,24]},"__metadata__":{"format":"pt"}}  )"),
      seed(6, R"({"\u00e9":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
              R"("none":{"dtype":"U8","shape":[0,7],"data_offsets":[6,6]}})"),
      seed(3, R"({"q":{"dtype":"F4","shape":[6],"data_offsets":[0,3]}})"),
      seed(8, R"({"a":{"dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[0,8]}})"),
      seed(8, R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[8,0]},"a":[[[[NaN]]]]})"),
  };
}

}  // namespace tensorcast::fuzz
