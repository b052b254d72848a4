#include "collective/helper/messages.h"

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"

namespace tensorcast::helper {
namespace {

using ::testing::ElementsAre;

TEST(HelperMessages, HelperMessages_EncodeToGoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeRequest(
                OpenRequest{.memory = {.device_uuid = "GPU-1", .opaque = "xy", .bytes = 2 << 20}})),
            "01"
            "0500"
            "4750552d31"
            "0200"
            "7879"
            "0000200000000000");
  EXPECT_EQ(absl::BytesToHexString(
                EncodeRequest(JoinRequest{.id = "", .world_size = 2, .ranks = {{0, "a"}, {1, "b"}}})),
            "02"
            "0000"
            "02000000"
            "02000000"
            "00000000"
            "0100"
            "61"
            "01000000"
            "0100"
            "62");
  EXPECT_EQ(absl::BytesToHexString(EncodeRequest(
                BroadcastRequest{.communicator = 3, .root = 1, .memories = {7, 8}, .ranges = {{4096, 16}}})),
            "03"
            "03000000"
            "01000000"
            "02000000"
            "07000000"
            "08000000"
            "01000000"
            "0010000000000000"
            "1000000000000000");
  EXPECT_EQ(absl::BytesToHexString(EncodeRequest(CloseRequest{.memory = 7})),
            "04"
            "07000000");
  EXPECT_EQ(absl::BytesToHexString(EncodeRequest(MakeIdRequest())), "05");
  EXPECT_EQ(
      absl::BytesToHexString(EncodeRequest(ReceiveRequest{.communicator = 3, .root = 1, .memories = {7}})),
      "06"
      "03000000"
      "01000000"
      "01000000"
      "07000000");
  EXPECT_EQ(absl::BytesToHexString(EncodeRequest(LeaveRequest{.communicator = 3})),
            "07"
            "03000000");
  EXPECT_EQ(absl::BytesToHexString(EncodeReply(5u)),
            "00"
            "05000000");
  EXPECT_EQ(absl::BytesToHexString(EncodeReply(Hello{.version = 2, .library = "2.28"})),
            "02"
            "02000000"
            "0400"
            "322e3238");
  EXPECT_EQ(absl::BytesToHexString(EncodeReply(std::string("id"))),
            "03"
            "0200"
            "6964");
  EXPECT_EQ(absl::BytesToHexString(EncodeReply(std::vector<ByteRange>{{4096, 16}})),
            "04"
            "01000000"
            "0010000000000000"
            "1000000000000000");
  EXPECT_EQ(absl::BytesToHexString(EncodeReply(absl::UnavailableError("no"))),
            "01"
            "0e00"
            "0200"
            "6e6f");
}

TEST(HelperMessages, HelperMessages_SurviveRoundTrip) {
  const auto join = DecodeRequest(EncodeRequest(
      JoinRequest{.id = std::string(128, '\1'), .world_size = 4, .ranks = {{2, "a"}, {3, "b"}}}));
  ASSERT_TRUE(join.ok()) << join.status();
  EXPECT_EQ(std::get<JoinRequest>(*join).id, std::string(128, '\1'));
  EXPECT_EQ(std::get<JoinRequest>(*join).ranks[1].device_uuid, "b");
  const auto broadcast = DecodeRequest(
      EncodeRequest(BroadcastRequest{.root = 1, .memories = {7, 8}, .ranges = {{0, 1}, {5, 6}}}));
  ASSERT_TRUE(broadcast.ok()) << broadcast.status();
  EXPECT_THAT(std::get<BroadcastRequest>(*broadcast).memories, ElementsAre(7, 8));
  EXPECT_THAT(std::get<BroadcastRequest>(*broadcast).ranges, ElementsAre(ByteRange{0, 1}, ByteRange{5, 6}));
  EXPECT_EQ(std::get<uint32_t>(DecodeReply(EncodeReply(5u)).value()), 5u);
  EXPECT_EQ(std::get<Hello>(DecodeReply(EncodeReply(Hello{.version = 2, .library = "2"})).value()).library,
            "2");
  EXPECT_EQ(std::get<std::string>(DecodeReply(EncodeReply(std::string("id"))).value()), "id");
  EXPECT_THAT(std::get<std::vector<ByteRange>>(
                  DecodeReply(EncodeReply(std::vector<ByteRange>{{0, 1}, {5, 6}})).value()),
              ElementsAre(ByteRange{0, 1}, ByteRange{5, 6}));
  EXPECT_EQ(DecodeReply(EncodeReply(absl::AbortedError("why"))).status(), absl::AbortedError("why"));
}

TEST(HelperMessages, DecodeHelperMessage_RefusesTruncatedAndExtendedBytes) {
  for (const Request& request :
       {Request(OpenRequest{.memory = {.device_uuid = "GPU-1", .opaque = "xy", .bytes = 1}}),
        Request(JoinRequest{.world_size = 2, .ranks = {{0, "a"}}}),
        Request(BroadcastRequest{.memories = {7}, .ranges = {{1, 2}}}), Request(CloseRequest{}),
        Request(MakeIdRequest{}), Request(ReceiveRequest{.memories = {7}}), Request(LeaveRequest{})}) {
    const std::string bytes = EncodeRequest(request);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeRequest(bytes.substr(0, size)).ok());
    }
    EXPECT_FALSE(DecodeRequest(bytes + "x").ok());
  }
  EXPECT_FALSE(DecodeRequest("\x09").ok());
  EXPECT_EQ(DecodeReply("").status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(DecodeReply(std::string("\1\0\0\0\0", 5)).status().code(), absl::StatusCode::kInternal);
}

TEST(HelperMessages, RangeHeader_HasFixedSizeAndSurvivesRoundTrip) {
  const std::vector<ByteRange> max(kMaxHeaderRanges, ByteRange{7, 8});
  for (const std::vector<ByteRange>& ranges : {std::vector<ByteRange>{}, {{4096, 16}}, max}) {
    const std::string bytes = EncodeHeader(ranges);
    ASSERT_EQ(bytes.size(), kHeaderBytes);
    const auto read = DecodeHeader(bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, ranges);
  }
  EXPECT_EQ(absl::BytesToHexString(EncodeHeader({{4096, 16}}).substr(0, 32)),
            "0100000000000000"
            "0000000000000000"
            "0010000000000000"
            "1000000000000000");
  std::string wrong = EncodeHeader({});
  wrong[1] = 1;
  EXPECT_FALSE(DecodeHeader(wrong).ok()) << "256 of them";
  EXPECT_FALSE(DecodeHeader(EncodeHeader({}).substr(1)).ok());
  EXPECT_FALSE(DecodeHeader(std::string(kHeaderBytes, '\xff')).ok());
}

TEST(HelperMessages, LargestBroadcastRequest_FitsOnePacket) {
  const BroadcastRequest largest{.memories = std::vector<uint32_t>(kMaxRanks),
                                 .ranges = std::vector<ByteRange>(kMaxRanges)};
  const std::string bytes = EncodeRequest(largest);
  EXPECT_LE(bytes.size(), kMaxMessageBytes);
  EXPECT_TRUE(DecodeRequest(bytes).ok());
  BroadcastRequest larger = largest;
  larger.ranges.emplace_back();
  EXPECT_FALSE(DecodeRequest(EncodeRequest(larger)).ok());
}

}  // namespace
}  // namespace tensorcast::helper
