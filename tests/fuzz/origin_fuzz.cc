// Origins as the metadata stores keep them.
#include "absl/log/check.h"
#include "core/artifact/origin.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  const absl::StatusOr<Origin> origin = DecodeOrigin(input);
  if (!origin.ok()) {
    CHECK(absl::IsInvalidArgument(origin.status())) << origin.status();
    return;
  }
  CHECK(EncodeOrigin(*origin) == input) << "two encodings of one origin";
}

std::vector<std::string> Seeds() {
  return {EncodeOrigin({}),
          EncodeOrigin({.node_id = "node-1",
                        .objects = {{.uri = "/models/m", .bytes = 1096, .version = "65025:524301:5:7"},
                                    {.uri = "/models/n", .bytes = 1, .version = "1:2:3:4"}},
                        .compared = true}),
          EncodeOrigin({.objects = {{.uri = "s3://bucket/m", .bytes = ~uint64_t{0}, .version = "\"etag\""}},
                        .untraceable = true})};
}

}  // namespace tensorcast::fuzz
