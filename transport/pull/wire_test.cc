#include "transport/pull/wire.h"

#include <random>

#include <gmock/gmock.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::transport::pull {
namespace {

PullId TestId(uint8_t first) {
  PullId id;
  for (uint8_t i = 0; i < id.size(); ++i) id[i] = first + i;
  return id;
}

std::vector<Frame> AllFrames() {
  return {
      Hello{.pull_id = TestId(0xa0), .traceparent = "00-ab"},
      Hello{.version = 9},
      Welcome{.version = 1, .max_requests = 64, .max_request_bytes = 1 << 20, .image_bytes = 123456789},
      Welcome{.max_requests = 64, .max_request_bytes = 1 << 20, .image_bytes = 1 << 30, .chunk_bytes = 4096},
      Error{.request_id = 7, .status = absl::NotFoundError("gone")},
      Error{.status = absl::UnavailableError("")},
      Request{.id = 9, .offset = 1 << 30, .bytes = 4096},
      Cancel{.id = 3},
      Bye{},
      Data{.request_id = 9, .offset = 1 << 24, .bytes = 1},
      Data{.request_id = 9, .offset = 1 << 24, .bytes = kMaxPieceBytes},
      Have{.words = {1}},
      Have{.first = 64, .words = std::vector<uint64_t>(kMaxHaveWords, ~uint64_t{0})},
      NotHere{.id = 9},
      Follow{}};
}

std::optional<Frame> Decoded(std::string_view bytes) {
  const absl::StatusOr<std::optional<DecodedFrame>> decoded = DecodeFrame(bytes);
  if (!decoded.ok() || !decoded->has_value()) return std::nullopt;
  return (*decoded)->frame;
}

bool IsRefused(std::string_view bytes) {
  return DecodeFrame(bytes).status().code() == absl::StatusCode::kInvalidArgument;
}

TEST(Wire, Frames_SurviveRoundTripWithTrailingBytes) {
  for (const Frame& frame : AllFrames()) {
    const std::string bytes = EncodeFrame(frame);
    EXPECT_LE(bytes.size(), kMaxFrameHeadBytes);
    const auto read = DecodeFrame(bytes + "\xff more");
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_TRUE(read->has_value());
    EXPECT_TRUE((*read)->frame == frame);
    EXPECT_EQ((*read)->bytes, bytes.size());
  }
}

TEST(Wire, TruncatedFrame_NeedsMoreBytes) {
  for (const Frame& frame : AllFrames()) {
    const std::string bytes = EncodeFrame(frame);
    for (size_t length = 0; length < bytes.size(); ++length) {
      const auto read = DecodeFrame(bytes.substr(0, length));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_FALSE(read->has_value()) << length;
    }
  }
}

// The worked examples of FORMAT.md.
TEST(Wire, Frames_EncodeToGoldenBytes) {
  const auto hex = [](const Frame& frame) { return absl::BytesToHexString(EncodeFrame(frame)); };
  EXPECT_EQ(hex(Hello{.max_piece_bytes = 0x40000, .pull_id = TestId(0xa0), .traceparent = "00-ab"}),
            "0100000020000000"
            "54435450"
            "04"
            "00000400"
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
            "0500"
            "30302d6162");
  EXPECT_EQ(
      hex(Welcome{
          .max_requests = 64, .max_request_bytes = 0x100000, .image_bytes = 0x0201, .chunk_bytes = 0x1000}),
      "020000001d000000"
      "04"
      "40000000"
      "0000100000000000"
      "0102000000000000"
      "0010000000000000");
  EXPECT_EQ(hex(Error{.request_id = 7, .status = absl::NotFoundError("gone")}),
            "030000000f000000"
            "0700000000000000"
            "05"
            "0400"
            "676f6e65");
  EXPECT_EQ(hex(Request{.id = 9, .offset = 0x1000000, .bytes = 0x100000}),
            "0400000018000000"
            "0900000000000000"
            "0000000100000000"
            "0000100000000000");
  EXPECT_EQ(hex(Cancel{.id = 9}),
            "0500000008000000"
            "0900000000000000");
  EXPECT_EQ(hex(Bye{}), "0600000000000000");
  EXPECT_EQ(hex(Data{.request_id = 9, .offset = 0x1000000, .bytes = 0x40000}),
            "0700000010000400"
            "0900000000000000"
            "0000000100000000");
  EXPECT_EQ(hex(Have{.first = 128, .words = {0x05, uint64_t{1} << 63}}),
            "0800000014000000"
            "80000000"
            "0500000000000000"
            "0000000000000080");
  EXPECT_EQ(hex(NotHere{.id = 9}),
            "0900000008000000"
            "0900000000000000");
  EXPECT_EQ(hex(Follow{}), "0a00000000000000");
}

TEST(Descriptor, Descriptors_EncodeToGoldenBytes) {
  const auto hex = [](const Descriptor& descriptor) {
    return absl::BytesToHexString(EncodeDescriptor(descriptor));
  };
  Descriptor descriptor{
      .lane = "tcp", .pull_id = TestId(0), .image_bytes = 0x1234, .addresses = {"10.0.0.1:7000"}};
  EXPECT_EQ(hex(descriptor),
            "54435044"
            "01"
            "03746370"
            "000102030405060708090a0b0c0d0e0f"
            "3412000000000000"
            "01"
            "0d31302e302e302e313a37303030"
            "0000"
            "00"
            "00000000");
  descriptor.lane = "ucx-rma";
  descriptor.rkeys = {"ab"};
  descriptor.segments = {{.rkey = 0, .address = 0x10000, .bytes = 0x1234}};
  EXPECT_EQ(hex(descriptor),
            "54435044"
            "01"
            "077563782d726d61"
            "000102030405060708090a0b0c0d0e0f"
            "3412000000000000"
            "01"
            "0d31302e302e302e313a37303030"
            "0000"
            "01"
            "02006162"
            "01000000"
            "00"
            "0000010000000000"
            "3412000000000000");
}

TEST(Wire, FrameWithInvalidField_IsRefused) {
  for (const Frame& frame : std::vector<Frame>{
           Request{.id = 0, .offset = 0, .bytes = 1}, Request{.id = 1, .offset = 0, .bytes = 0}, Welcome{},
           Error{.request_id = 1, .status = absl::OkStatus()}, Cancel{.id = 0},
           Data{.request_id = 0, .offset = 0, .bytes = 1}, Data{.request_id = 1, .offset = 0, .bytes = 0},
           Data{.request_id = 1, .offset = 0, .bytes = kMaxPieceBytes + 1}, Have{.first = 64},
           Have{.first = 63, .words = {1}}, Have{.words = std::vector<uint64_t>(kMaxHaveWords + 1)},
           NotHere{.id = 0}}) {
    EXPECT_TRUE(IsRefused(EncodeFrame(frame))) << frame.index();
  }
  std::string hello = EncodeFrame(Hello{});
  hello[8] ^= 1;  // its magic
  EXPECT_TRUE(IsRefused(hello));
}

TEST(Wire, UnknownFrameType_IsRefusedByItsFirstBytes) {
  EXPECT_TRUE(IsRefused("G"));  // ET / HTTP/1.1
  EXPECT_TRUE(IsRefused(std::string(1, '\0')));
  EXPECT_TRUE(IsRefused("\x0b"));
  EXPECT_TRUE(IsRefused(std::string("\x01\x00\x01\x00\x00\x00\x00\x00", 8)));
}

TEST(Wire, OversizedFrame_IsRefusedByItsLength) {
  for (const Frame& frame : AllFrames()) {
    std::string bytes = EncodeFrame(frame).substr(0, 8);
    bytes[7] = '\x7f';
    EXPECT_TRUE(IsRefused(bytes)) << frame.index();
  }
}

TEST(Wire, FrameBodyOfWrongLength_IsRefused) {
  for (const Frame& frame : AllFrames()) {
    if (std::holds_alternative<Data>(frame)) continue;
    std::string bytes = EncodeFrame(frame) + "x";
    ++bytes[4];
    EXPECT_TRUE(IsRefused(bytes)) << frame.index();
  }
}

TEST(Wire, CheckFilling_LimitsChunkSizeAndCount) {
  EXPECT_EQ(CheckFilling(1, 4096), absl::OkStatus());
  EXPECT_EQ(CheckFilling(kMaxFillingChunks * 4096, 4096), absl::OkStatus());
  EXPECT_EQ(CheckFilling(~uint64_t{0}, ~uint64_t{0} - 4095), absl::OkStatus());
  for (const auto& [image_bytes, chunk_bytes] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, 4096},
                                                  {1, 0},
                                                  {1, 1},
                                                  {4096, 4095},
                                                  {kMaxFillingChunks * 4096 + 1, 4096},
                                                  {~uint64_t{0}, 4096}}) {
    EXPECT_EQ(CheckFilling(image_bytes, chunk_bytes).code(), absl::StatusCode::kInvalidArgument)
        << image_bytes << " in " << chunk_bytes;
  }
}

TEST(Wire, LongFrameTexts_AreTruncated) {
  const std::optional<Frame> error =
      Decoded(EncodeFrame(Error{.request_id = 1, .status = absl::InternalError(std::string(1000, 'x'))}));
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(std::get<Error>(*error).status.message().size(), kMaxErrorTextBytes);
  const std::optional<Frame> hello = Decoded(EncodeFrame(Hello{.traceparent = std::string(1000, 'x')}));
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(std::get<Hello>(*hello).traceparent.size(), kMaxTraceparentBytes);
}

TEST(Wire, HelloOfAnotherVersion_IsRefusedByBothNumbers) {
  EXPECT_TRUE(CheckVersion(Hello{}).ok());
  for (const uint8_t version : {kVersion - 1, kVersion + 1}) {
    const absl::Status refused = CheckVersion(Hello{.version = version});
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), testing::HasSubstr(absl::StrCat("version ", version)));
    EXPECT_THAT(refused.message(), testing::HasSubstr(absl::StrCat("this source speaks version ", kVersion)));
  }
}

TEST(Descriptor, Descriptor_SurvivesRoundTrip) {
  Descriptor descriptor{
      .lane = "tcp", .pull_id = TestId(7), .image_bytes = 5, .addresses = {"[fd00::1]:7000", "node-a:1"}};
  EXPECT_EQ(*DecodeDescriptor("tcp", EncodeDescriptor(descriptor)), descriptor);
  descriptor.source = "spiffe://a.example/tensorcast/node/b";
  EXPECT_EQ(*DecodeDescriptor("tcp", EncodeDescriptor(descriptor)), descriptor);
  descriptor.addresses = std::vector<std::string>(kMaxAddresses, std::string(255, 'x'));
  EXPECT_EQ(*DecodeDescriptor("tcp", EncodeDescriptor(descriptor)), descriptor);
  descriptor.rkeys = {"abc", ""};
  descriptor.segments = {{0, 0x10000, 2}, {1, 0x20000, 3}};
  EXPECT_EQ(*DecodeDescriptor("tcp", EncodeDescriptor(descriptor)), descriptor);
}

TEST(Descriptor, InvalidDescriptor_IsRefused) {
  const std::string good =
      EncodeDescriptor({.lane = "tcp", .image_bytes = 5, .addresses = {"10.0.0.1:7000"}});
  const auto code_of = [](const std::string& bytes) {
    return DecodeDescriptor("tcp", bytes).status().code();
  };
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(code_of(good.substr(0, length)), absl::StatusCode::kInvalidArgument) << length;
  }
  EXPECT_EQ(code_of(good + "x"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeDescriptor("ucx", good).status().code(), absl::StatusCode::kInvalidArgument);
  std::string other = good;
  other[4] = 2;
  EXPECT_EQ(code_of(other), absl::StatusCode::kFailedPrecondition);
  for (const char count : {'\x00', '\x02', '\x11', '\xff'}) {
    std::string bad = good;
    bad[33] = count;
    EXPECT_EQ(code_of(bad), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Descriptor, ImpossibleSegments_AreRefused) {
  constexpr uint64_t kImageBytes = 100;
  const auto is_refused = [](std::vector<Descriptor::Segment> segments) {
    return absl::IsInvalidArgument(DecodeDescriptor("ucx-rma", EncodeDescriptor({.lane = "ucx-rma",
                                                                                 .image_bytes = kImageBytes,
                                                                                 .addresses = {"a:1"},
                                                                                 .rkeys = {"key"},
                                                                                 .segments = segments}))
                                       .status());
  };
  EXPECT_FALSE(is_refused({{0, 0x1000, 60}, {0, 0x2000, 40}}));
  EXPECT_TRUE(is_refused({{0, 0x1000, 60}, {0, 0x2000, 41}}));
  EXPECT_TRUE(is_refused({{0, 0x1000, 60}}));
  EXPECT_TRUE(is_refused({{1, 0x1000, kImageBytes}}));
  EXPECT_TRUE(is_refused({{0, ~uint64_t{0}, kImageBytes}}));
  EXPECT_TRUE(is_refused({{0, 0x1000, ~uint64_t{0}}, {0, 0x1000, kImageBytes + 1}}));
}

}  // namespace
}  // namespace tensorcast::transport::pull
