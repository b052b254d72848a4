#include "core/handles/codec.h"

#include <random>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::codec_test {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Hex(const Frame& frame) {
  absl::StatusOr<std::string> bytes = EncodeFrame(frame);
  return bytes.ok() ? absl::BytesToHexString(*bytes) : bytes.status().ToString();
}

std::string FromHex(std::string_view hex) {
  std::string bytes;
  EXPECT_TRUE(absl::HexStringToBytes(hex, &bytes)) << hex;
  return bytes;
}

absl::StatusOr<Frame> DecodeHex(std::string_view hex) {
  const std::string bytes = FromHex(hex);
  return DecodeFrame(AsBytes(bytes));
}

// What comes back when the frame is encoded and its body decoded.
absl::StatusOr<Frame> RoundTrip(const Frame& frame) {
  absl::StatusOr<std::string> bytes = EncodeFrame(frame);
  if (!bytes.ok()) return bytes.status();
  return DecodeFrame(AsBytes(*bytes).subspan(kFramePrefixBytes));
}

ReplicaHandles HostReplica() {
  return {.replica_id = "r1",
          .artifact_id = "tc2:a",
          .image_bytes = 0x500000,
          .memory = HostHandles{.pool_id = "p",
                                .segments = {{1, 0x40000000}, {3, 0x1000000}},
                                .extents = {{0, 0, 0x800000, 0x200000}, {0x400000, 1, 0x400000, 0x200000}}}};
}

std::vector<Frame> EveryFrame() {
  ReplicaHandles device{"r2", "tc2:b", 4096, DeviceHandles{{"FAKE-0", std::string("\0\xff", 2), 8192}}};
  ReplicaHandles file{"r3", "tc2:c", 4096, FileHandles{8192}};
  return {HelloFrame{1},
          HelloAckFrame{1},
          ClaimFrame{"ticket"},
          HandlesFrame{HostReplica()},
          HandlesFrame{device},
          HandlesFrame{file},
          OfferFrame{77, std::nullopt},
          OfferFrame{77, IpcHandle{"FAKE-1", "opaque", 77}},
          OfferedFrame{"token"},
          ClosedFrame{},
          ErrorFrame{absl::NotFoundError("gone")},
          DescriptorsFrame{},
          FollowFrame{},
          HaveFrame{64, {0x8000000000000001, 0}},
          HaveEndFrame{absl::OkStatus()},
          HaveEndFrame{absl::CancelledError("going")},
          OpeningFrame{},
          StreamFrame{77},
          RingFrame{"token", {16, 4096}},
          OfferFilesFrame{3},
          HandOverFrame{.bytes = 77},
          HandOverFrame{.pool_id = "p", .replica_id = "r"},
          PartsFrame{{{256, 5, 4096}, {512, 6, 0}}}};
}

TEST(HandleCodec, HandleFrames_EncodeToGoldenBytes) {
  EXPECT_EQ(Hex(HelloFrame{}), "0700000001544348530600");
  EXPECT_EQ(Hex(HelloAckFrame{}), "0700000002544348530600");
  EXPECT_EQ(Hex(ClaimFrame{"ab"}), "050000000302006162");
  EXPECT_EQ(Hex(HandlesFrame{HostReplica()}),
            "70000000"
            "04"
            "02007231"
            "05007463323a61"
            "0000500000000000"
            "01"
            "010070"
            "02000000"
            "01000000"
            "0000004000000000"
            "03000000"
            "0000000100000000"
            "02000000"
            "0000000000000000"
            "00000000"
            "0000800000000000"
            "0000200000000000"
            "0000400000000000"
            "01000000"
            "0000400000000000"
            "0000200000000000");
  EXPECT_EQ(Hex(DescriptorsFrame{}), "0100000009");
  EXPECT_EQ(Hex(HandlesFrame{{"r", "a", 1, DeviceHandles{{"G", "x", 2}}}}),
            "1e000000"
            "04"
            "010072"
            "010061"
            "0100000000000000"
            "02"
            "010047"
            "010078"
            "0200000000000000");
  EXPECT_EQ(Hex(HandlesFrame{{"r", "a", 1, FileHandles{4096}}}),
            "18000000"
            "04"
            "010072"
            "010061"
            "0100000000000000"
            "03"
            "0010000000000000");
  EXPECT_EQ(Hex(OfferFrame{5, std::nullopt}),
            "0a000000"
            "05"
            "01"
            "0500000000000000");
  EXPECT_EQ(Hex(OfferFrame{5, IpcHandle{"G", "x", 5}}),
            "18000000"
            "05"
            "02"
            "0500000000000000"
            "010047"
            "010078"
            "0500000000000000");
  EXPECT_EQ(Hex(OfferFilesFrame{2}), "050000001002000000");
  EXPECT_EQ(Hex(HandOverFrame{.bytes = 5}),
            "0a000000"
            "11"
            "01"
            "0500000000000000");
  EXPECT_EQ(Hex(HandOverFrame{.pool_id = "p", .replica_id = "rs"}),
            "09000000"
            "11"
            "04"
            "010070"
            "02007273");
  EXPECT_EQ(Hex(PartsFrame{{{256, 5, 4096}}}),
            "1d000000"
            "12"
            "01000000"
            "0001000000000000"
            "0500000000000000"
            "0010000000000000");
  EXPECT_EQ(Hex(OfferedFrame{"ab"}), "050000000602006162");
  EXPECT_EQ(Hex(ClosedFrame{}), "0100000007");
  EXPECT_EQ(Hex(OpeningFrame{}), "010000000d");
  EXPECT_EQ(Hex(StreamFrame{5}),
            "09000000"
            "0e"
            "0500000000000000");
  EXPECT_EQ(Hex(RingFrame{"ab", {3, 4096}}),
            "0d000000"
            "0f"
            "02006162"
            "03000000"
            "00100000");
  EXPECT_EQ(Hex(ErrorFrame{absl::NotFoundError("no")}),
            "07000000"
            "08"
            "0500"
            "02006e6f");
  EXPECT_EQ(Hex(FollowFrame{}), "010000000a");
  EXPECT_EQ(Hex(HaveFrame{128, {5}}),
            "11000000"
            "0b"
            "80000000"
            "01000000"
            "0500000000000000");
  EXPECT_EQ(Hex(HaveEndFrame{absl::OkStatus()}),
            "05000000"
            "0c"
            "0000"
            "0000");
  EXPECT_EQ(Hex(HaveEndFrame{absl::CancelledError("no")}),
            "07000000"
            "0c"
            "0100"
            "02006e6f");
}

TEST(HandleCodec, HandleFrames_SurviveRoundTrip) {
  for (const Frame& frame : EveryFrame()) {
    const absl::StatusOr<Frame> decoded = RoundTrip(frame);
    ASSERT_TRUE(decoded.ok()) << FrameName(frame) << ": " << decoded.status();
    EXPECT_EQ(decoded->index(), frame.index());
    EXPECT_EQ(Hex(*decoded), Hex(frame)) << FrameName(frame);
  }
}

TEST(HandleCodec, ErrorFrame_KeepsCodeAndMapsOtherCodesToUnknown) {
  const auto known = RoundTrip(ErrorFrame{absl::ResourceExhaustedError("full")});
  EXPECT_EQ(std::get<ErrorFrame>(*known).status, absl::ResourceExhaustedError("full"));
  const auto unknown = DecodeHex(
      "08"
      "e703"
      "0000");  // code 999
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_EQ(std::get<ErrorFrame>(*unknown).status.code(), absl::StatusCode::kUnknown);
}

TEST(HandleCodec, ErrorFrame_TruncatesLongMessage) {
  const auto decoded = RoundTrip(ErrorFrame{absl::InternalError(std::string(100'000, 'x'))});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<ErrorFrame>(*decoded).status.message().size(), kMaxErrorMessageBytes);
}

TEST(HandleCodec, DecodeHandleFrame_RefusesTruncatedAndExtendedBytes) {
  for (const Frame& frame : EveryFrame()) {
    const std::string bytes = EncodeFrame(frame)->substr(kFramePrefixBytes);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(DecodeFrame(AsBytes(bytes.substr(0, size))).status().code(),
                absl::StatusCode::kInvalidArgument)
          << FrameName(frame) << " cut to " << size;
    }
    const bool may_grow =
        std::holds_alternative<HelloFrame>(frame) || std::holds_alternative<HelloAckFrame>(frame);
    EXPECT_EQ(DecodeFrame(AsBytes(bytes + "x")).ok(), may_grow) << FrameName(frame);
  }
}

TEST(HandleCodec, DecodeHandleFrame_RefusesMalformedFieldsWithOffset) {
  const std::pair<const char*, const char*> cases[] = {
      {"00", "an unknown type"},
      {"63", "an unknown type"},
      {"0154434858"
       "0100",
       "magic"},
      {"04"
       "0000"
       "0000"
       "0000000000000000"
       "09",
       "kind of memory"},
      {"05"
       "03"
       "0000000000000000",
       "kind of memory"},
      {"08"
       "0000"
       "0000",
       "the code OK"},
      {"04"
       "0000"
       "0000"
       "0000000000000000"
       "01"
       "0000"
       "00000000"
       "ffffffff",
       "more items"},
      {"04"
       "0000"
       "0000"
       "0000000000000000"
       "01"
       "0000"
       "ffffffff",
       "more items"},
      {"0b"
       "01000000"
       "00000000",
       "not a multiple of 64"},
      {"0b"
       "00000000"
       "01000000",
       "more items"},
      {"0c"
       "0000"
       "010078",
       "message with the status OK"},
  };
  for (const auto& [hex, reason] : cases) {
    const absl::Status status = DecodeHex(hex).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << hex;
    EXPECT_THAT(status.message(), HasSubstr(reason)) << hex;
    EXPECT_THAT(status.message(), HasSubstr("at byte")) << hex;
  }
}

TEST(HandleCodec, DecodeFramePrefix_RefusesEmptyAndOversizedFrames) {
  const auto prefix = [](std::string_view hex) {
    const std::string bytes = FromHex(hex);
    return DecodeFramePrefix(AsBytes(bytes).first<kFramePrefixBytes>(), kMaxClientFrameBytes);
  };
  EXPECT_EQ(*prefix("01000000"), 1u);
  EXPECT_EQ(*prefix("00100000"), kMaxClientFrameBytes);
  EXPECT_FALSE(prefix("00000000").ok());
  EXPECT_FALSE(prefix("01100000").ok());
  EXPECT_FALSE(prefix("ffffffff").ok());
}

TEST(HandleCodec, EncodeHandleFrame_RefusesOversizedFields) {
  EXPECT_FALSE(EncodeFrame(ClaimFrame{std::string(65536, 'x')}).ok());
  ReplicaHandles huge = HostReplica();
  std::get<HostHandles>(huge.memory).extents.resize(kMaxServerFrameBytes / 28);
  EXPECT_EQ(EncodeFrame(HandlesFrame{huge}).status().code(), absl::StatusCode::kInvalidArgument);
  std::get<HostHandles>(huge.memory).extents.resize(500'000);  // a terabyte, all in pieces
  EXPECT_TRUE(EncodeFrame(HandlesFrame{huge}).ok());
}

TEST(HandleCodec, DecodeHandleFrame_SurvivesRandomDamage) {
  std::mt19937 random(7);
  std::vector<std::string> seeds;
  for (const Frame& frame : EveryFrame()) seeds.push_back(EncodeFrame(frame)->substr(kFramePrefixBytes));
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = seeds[random() % seeds.size()];
    for (int flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 8));
    const absl::StatusOr<Frame> frame = DecodeFrame(AsBytes(bytes));
    if (!frame.ok()) continue;
    ++accepted;
    const bool may_grow = frame->index() <= 1;
    // What is accepted is the one encoding of what it says.
    if (!may_grow && !std::holds_alternative<ErrorFrame>(*frame) &&
        !std::holds_alternative<HaveEndFrame>(*frame)) {
      EXPECT_EQ(EncodeFrame(*frame)->substr(kFramePrefixBytes), bytes);
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace tensorcast::codec_test
