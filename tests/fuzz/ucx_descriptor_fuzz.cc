// The descriptor of a serving, and the "host:port" in it.
#include "absl/log/check.h"
#include "base/address.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/ucx/descriptor.h"

namespace tensorcast::fuzz {

using namespace transport;  // NOLINT(google-build-using-namespace): the codec under test

void TestOneInput(std::string_view input) {
  if (const absl::StatusOr<HostPort> address = ParseHostPort(input); address.ok()) {
    CHECK(ParseHostPort(FormatHostPort(*address)).value() == *address) << input;
  }
  const absl::StatusOr<UcxDescriptor> descriptor = DecodeDescriptor(input);
  if (!descriptor.ok()) return;
  CHECK(EncodeDescriptor(*descriptor).value() == input);
  if (descriptor->lane != UcxLane::kRma) return;
  uint64_t bytes = 0;
  for (const UcxDescriptor::Segment& segment : descriptor->segments) {
    CHECK_LT(segment.rkey, descriptor->rkeys.size());
    CHECK_LE(segment.bytes, descriptor->image_bytes - bytes);
    bytes += segment.bytes;
  }
  CHECK_EQ(bytes, descriptor->image_bytes);
}

std::vector<std::string> Seeds() {
  UcxDescriptor messages;
  messages.address = "10.0.0.1:7000";
  messages.image_bytes = 0x1234;
  UcxDescriptor one_sided = messages;
  one_sided.lane = UcxLane::kRma;
  one_sided.address = "[fe80::1]:65535";
  one_sided.rkeys = {"abc", ""};
  one_sided.segments = {{0, 0x10000, 0x1000}, {1, 0x20000, 0x234}};
  return {EncodeDescriptor(messages).value(), EncodeDescriptor(one_sided).value(), "[::1]:80", "host:0",
          "host:65536"};
}

}  // namespace tensorcast::fuzz
