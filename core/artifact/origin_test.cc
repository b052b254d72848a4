#include "core/artifact/origin.h"

#include <limits>
#include <string>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::origin_test {
namespace {

using ::testing::HasSubstr;

// The worked example of FORMAT.md.
Origin Example() {
  return {.node_id = "node-1",
          .objects = {{.uri = "/models/m", .bytes = 1096, .version = "65025:524301:5:7"}},
          .compared = true};
}

constexpr std::string_view kExampleHex =
    "01"
    "02"  // format, compared
    "060000006e6f64652d31"
    "01000000"  // "node-1", one object
    "090000002f6d6f64656c732f6d"
    "4804000000000000"                           // "/models/m", 1096 bytes
    "1000000036353032353a3532343330313a353a37";  // "65025:524301:5:7"

std::string ExampleBytes() {
  std::string bytes;
  EXPECT_TRUE(absl::HexStringToBytes(kExampleHex, &bytes));
  return bytes;
}

TEST(Origin, Origin_EncodesToGoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeOrigin(Example())), kExampleHex);
  const auto decoded = DecodeOrigin(ExampleBytes());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Example());
}

TEST(Origin, SharedOriginOfSeveralObjects_ComesBack) {
  const Origin shared{
      .objects = {{.uri = "s3://bucket/a", .bytes = 1, .version = "\"etag\""}, {.uri = "s3://b"}},
      .untraceable = true};
  const auto decoded = DecodeOrigin(EncodeOrigin(shared));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, shared);
}

TEST(Origin, OriginOfUrisOnly_IsShared) {
  EXPECT_FALSE(IsShared({}));
  EXPECT_FALSE(IsShared(Example()));
  EXPECT_TRUE(IsShared({.node_id = "a", .objects = {{.uri = "s3://bucket/a"}, {.uri = "s3://bucket/b"}}}));
  EXPECT_FALSE(IsShared({.objects = {{.uri = "s3://bucket/a"}, {.uri = "/b"}}}));
}

TEST(Origin, DecodeOrigin_RefusesCutLongOrUnknownBytes) {
  const std::string bytes = ExampleBytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeOrigin(bytes.substr(0, size)).status().code(), absl::StatusCode::kInvalidArgument)
        << size;
  }
  EXPECT_THAT(DecodeOrigin(bytes + "x").status().message(), HasSubstr("bytes follow the last field"));
  EXPECT_THAT(DecodeOrigin("\2" + bytes.substr(1)).status().message(), HasSubstr("format 2"));
  EXPECT_THAT(DecodeOrigin("\1\4" + bytes.substr(2)).status().message(),
              HasSubstr("flags that this build does not know"));
}

TEST(FileVersion, FileVersion_TextComesBack) {
  const FileVersion version{.device = std::numeric_limits<uint64_t>::max(),
                            .inode = 1,
                            .mtime_ns = -6,
                            .ctime_ns = std::numeric_limits<int64_t>::min()};
  EXPECT_EQ(FileVersion::Parse(version.Text()), version);
  for (const std::string_view other : {"", "1:2:3", "1:2:3:4:5", "-1:2:3:4", "\"etag\""}) {
    EXPECT_EQ(FileVersion::Parse(other), std::nullopt) << other;
  }
}

TEST(ObjectIdentity, DescribeChange_NamesWhatDiffers) {
  const ObjectIdentity file{.uri = "/m", .bytes = 4, .version = "1:2:3:4"};
  EXPECT_EQ(DescribeChange(file, file), "");
  EXPECT_EQ(DescribeChange(file, {.uri = "/m", .bytes = 5, .version = "1:2:3:9"}),
            "the size was 4 and is now 5, the ctime in ns was 4 and is now 9");
  EXPECT_EQ(DescribeChange({.uri = "s3://b/o", .version = "\"a\""}, {.uri = "s3://b/o", .version = "\"b\""}),
            "the version was \"a\" and is now \"b\"");
}

}  // namespace
}  // namespace tensorcast::origin_test
