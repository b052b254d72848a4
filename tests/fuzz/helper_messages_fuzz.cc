// What a daemon and its helper process say to each other, and what helpers of other nodes say of a broadcast.
// The first byte chooses which, the rest is the message.
#include "absl/log/check.h"
#include "collective/helper/messages.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  if (input.empty()) return;
  const std::string_view bytes = input.substr(1);
  switch (input.front() % 3) {
    case 0:
      if (const auto request = helper::DecodeRequest(bytes); request.ok()) {
        CHECK_EQ(helper::EncodeRequest(*request), bytes);
      } else {
        CHECK(absl::IsInvalidArgument(request.status())) << request.status();
      }
      return;
    case 1:
      if (const auto reply = helper::DecodeReply(bytes); reply.ok()) {
        CHECK_EQ(helper::EncodeReply(*reply), bytes);
      }
      return;
    default:
      if (const auto ranges = helper::DecodeHeader(bytes); ranges.ok()) {
        CHECK_LE(ranges->size(), helper::kMaxHeaderRanges);
        CHECK(helper::DecodeHeader(helper::EncodeHeader(*ranges)).value() == *ranges);
      } else {
        CHECK(absl::IsInvalidArgument(ranges.status())) << ranges.status();
      }
  }
}

std::vector<std::string> Seeds() {
  const auto request = [](const helper::Request& one) { return '\0' + helper::EncodeRequest(one); };
  const auto reply = [](const absl::StatusOr<helper::Reply>& one) { return '\1' + helper::EncodeReply(one); };
  return {request(helper::OpenRequest{.memory = {.device_uuid = "GPU-1", .opaque = "xy", .bytes = 1 << 20}}),
          request(helper::JoinRequest{.id = "id", .world_size = 4, .ranks = {{2, "a"}, {3, "b"}}}),
          request(helper::BroadcastRequest{.root = 1, .memories = {7, 8}, .ranges = {{0, 1}, {5, 6}}}),
          request(helper::CloseRequest{.memory = 7}),
          request(helper::MakeIdRequest()),
          request(helper::ReceiveRequest{.communicator = 3, .root = 1, .memories = {7}}),
          request(helper::LeaveRequest{.communicator = 3}),
          reply(uint32_t{5}),
          reply(absl::UnavailableError("no")),
          reply(helper::Hello{.version = 2, .library = "2.28.9"}),
          reply(std::string("id")),
          reply(std::vector<ByteRange>{{0, 4096}}),
          '\2' + helper::EncodeHeader({{4096, 16}, {0, 16}})};
}

}  // namespace tensorcast::fuzz
