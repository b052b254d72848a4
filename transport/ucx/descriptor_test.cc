#include "transport/ucx/descriptor.h"

#include "absl/strings/escaping.h"

#include <gmock/gmock.h>

namespace tensorcast::transport {
namespace {

UcxDescriptor Messages() {
  UcxDescriptor descriptor;
  for (uint8_t i = 0; i < 16; ++i) descriptor.pull_id[i] = i;
  descriptor.address = "10.0.0.1:7000";
  descriptor.image_bytes = 0x1234;
  return descriptor;
}

UcxDescriptor OneSided() {
  UcxDescriptor descriptor = Messages();
  descriptor.lane = UcxLane::kRma;
  descriptor.rkeys = {"abc"};
  descriptor.segments = {{0, 0x10000, 0x1000}, {0, 0x20000, 0x234}};
  return descriptor;
}

TEST(Descriptor, UcxDescriptor_SurvivesRoundTrip) {
  EXPECT_EQ(*DecodeDescriptor(*EncodeDescriptor(Messages())), Messages());
  EXPECT_EQ(*DecodeDescriptor(*EncodeDescriptor(OneSided())), OneSided());
}

// The worked examples of FORMAT.md.
TEST(Descriptor, UcxDescriptor_EncodesToGoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(*EncodeDescriptor(Messages())),
            "54435558"
            "01"
            "00"
            "000102030405060708090a0b0c0d0e0f"
            "0d00"
            "31302e302e302e313a37303030"
            "3412000000000000");
  EXPECT_EQ(absl::BytesToHexString(*EncodeDescriptor(OneSided())).substr(90),
            "01"
            "0300"
            "616263"
            "02000000"
            "00"
            "0000010000000000"
            "0010000000000000"
            "00"
            "0000020000000000"
            "3402000000000000");
}

TEST(Descriptor, DecodeUcxDescriptor_RefusesAnythingElse) {
  for (const UcxDescriptor& descriptor : {Messages(), OneSided()}) {
    const std::string bytes = *EncodeDescriptor(descriptor);
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_EQ(DecodeDescriptor(bytes.substr(0, length)).status().code(),
                absl::StatusCode::kInvalidArgument);
    }
    EXPECT_FALSE(DecodeDescriptor(bytes + "x").ok());
  }
  std::string other = *EncodeDescriptor(Messages());
  other[4] = 2;
  EXPECT_EQ(DecodeDescriptor(other).status().code(), absl::StatusCode::kFailedPrecondition);
  other[4] = 1;
  other[5] = 9;
  EXPECT_EQ(DecodeDescriptor(other).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Descriptor, DescriptorSegments_MustMakeUpTheImage) {
  UcxDescriptor bad = OneSided();
  bad.image_bytes += 1;
  EXPECT_FALSE(DecodeDescriptor(*EncodeDescriptor(bad)).ok());
  bad = OneSided();
  bad.segments[0].rkey = 1;
  EXPECT_FALSE(DecodeDescriptor(*EncodeDescriptor(bad)).ok());
  bad = OneSided();
  bad.segments[0].address = ~uint64_t{0};
  EXPECT_FALSE(DecodeDescriptor(*EncodeDescriptor(bad)).ok());
}

TEST(Descriptor, DescriptorWithTooManySegments_IsRefused) {
  UcxDescriptor descriptor = OneSided();
  descriptor.segments.resize(5000);
  EXPECT_EQ(EncodeDescriptor(descriptor).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tensorcast::transport
