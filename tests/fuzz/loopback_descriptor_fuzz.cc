// The descriptor of a serving of the loopback transport.
#include "absl/log/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/loopback/loopback_serving.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  const auto pull = transport::DecodeLoopbackDescriptor(input);
  if (pull.ok()) {
    CHECK_EQ(transport::EncodeLoopbackDescriptor(*pull), input);
  } else {
    CHECK(absl::IsInvalidArgument(pull.status()) || absl::IsFailedPrecondition(pull.status()))
        << pull.status();
  }
}

std::vector<std::string> Seeds() {
  std::string other_version = transport::EncodeLoopbackDescriptor({});
  ++other_version[4];
  return {transport::EncodeLoopbackDescriptor({}), other_version};
}

}  // namespace tensorcast::fuzz
