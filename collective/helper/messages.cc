#include "collective/helper/messages.h"

#include "absl/strings/str_cat.h"
#include "base/byte_fields.h"

namespace tensorcast::helper {
namespace {

// The first byte of a message is the number of its alternative (FORMAT.md). These are the numbers of the
// first alternatives of Request and Answer: the order of both is part of the format.
constexpr uint8_t kFirstRequest = 1;
constexpr uint8_t kFirstAnswer = 0;

constexpr char kTooMany[] = "more items than a message may have";

// A longer message of an error is cut: this much tells people what happened, and fits a packet.
constexpr size_t kMaxErrorBytes = 4096;

struct Failure {
  uint16_t code = 0;
  std::string message;
};
void Fields(auto& io, Failure& failure) { io(failure.code, failure.message); }

using Answer = std::variant<uint32_t, Failure, Hello, std::string, std::vector<ByteRange>>;

}  // namespace

void Fields(auto& io, OpenRequest& open) { io(open.memory); }
void Fields(auto& io, JoinRequest::Rank& rank) { io(rank.rank, rank.device_uuid); }
void Fields(auto& io, JoinRequest& join) {
  io(join.id, join.world_size, join.ranks);
  io.Check(join.ranks.size() <= kMaxRanks, kTooMany);
}
void Fields(auto& io, BroadcastRequest& broadcast) {
  io(broadcast.communicator, broadcast.root, broadcast.memories, broadcast.ranges);
  io.Check(broadcast.memories.size() <= kMaxRanks && broadcast.ranges.size() <= kMaxRanges, kTooMany);
}
void Fields(auto& io, CloseRequest& close) { io(close.memory); }
void Fields(auto& io, ReceiveRequest& receive) {
  io(receive.communicator, receive.root, receive.memories);
  io.Check(receive.memories.size() <= kMaxRanks, kTooMany);
}
void Fields(auto& io, LeaveRequest& leave) { io(leave.communicator); }
void Fields(auto& io, Hello& hello) { io(hello.version, hello.library); }

std::string EncodeRequest(const Request& request) {
  FieldWriter<uint16_t> writer;
  writer.OneOf<kFirstRequest>(request, "");
  return writer.bytes().Take();
}

std::string EncodeReply(const absl::StatusOr<Reply>& reply) {
  // A status that is OK has code 0 here and is replaced at once by what was answered.
  Answer answer = Failure{.code = static_cast<uint16_t>(reply.status().code()),
                          .message = std::string(reply.status().message().substr(0, kMaxErrorBytes))};
  if (reply.ok()) std::visit([&answer](const auto& each) { answer = each; }, *reply);
  FieldWriter<uint16_t> writer;
  writer.OneOf<kFirstAnswer>(answer, "");
  return writer.bytes().Take();
}

absl::StatusOr<Request> DecodeRequest(std::string_view bytes) {
  FieldReader<uint16_t> reader(bytes);
  Request request;
  reader.OneOf<kFirstRequest>(request, "an unknown kind of request");
  const ByteReader& in = reader.bytes();
  if (in.AtEnd()) return request;
  return absl::InvalidArgumentError(absl::StrCat(
      "decode a request of ", bytes.size(), " bytes: the request is malformed at byte ", in.position(), " (",
      in.ok() ? "bytes follow the last field" : in.failure(), "); install daemon and helper from one build"));
}

// The other process runs a foreign library. Nothing of its answer is used unless all of it can be read.
absl::StatusOr<Reply> DecodeReply(std::string_view bytes) {
  FieldReader<uint16_t> reader(bytes);
  Answer answer;
  reader.OneOf<kFirstAnswer>(answer, "an unknown kind of answer");
  absl::StatusOr<Reply> reply = absl::InternalError(
      absl::StrCat("decode an answer of ", bytes.size(),
                   " bytes: the answer is malformed; install daemon and helper from one build"));
  if (!reader.bytes().AtEnd()) return reply;
  if (const auto* const failure = std::get_if<Failure>(&answer)) {
    // A failure with the code of OK is not an answer: what `reply` says stays.
    if (failure->code != 0) {
      reply = absl::Status(static_cast<absl::StatusCode>(failure->code), failure->message);
    }
    return reply;
  }
  std::visit(
      [&reply]<typename T>(T& each) {
        if constexpr (!std::is_same_v<T, Failure>) reply = Reply(std::move(each));
      },
      answer);
  return reply;
}

std::string EncodeHeader(const std::vector<ByteRange>& ranges) {
  ByteWriter writer;
  // The second number is reserved: a receiver refuses a header in which it is not 0.
  writer.Put(static_cast<uint64_t>(ranges.size())).Put(uint64_t{0});
  for (const ByteRange& range : ranges) writer.Put(range.offset).Put(range.bytes);
  // The header always has one size: a receiver takes it before it knows how many ranges there are.
  std::string header = writer.Take();
  header.resize(kHeaderBytes, '\0');
  return header;
}

absl::StatusOr<std::vector<ByteRange>> DecodeHeader(std::string_view bytes) {
  FieldReader<uint16_t> reader(bytes);
  uint64_t count = 0;
  uint64_t nothing = 0;
  reader(count, nothing);
  if (bytes.size() != kHeaderBytes || count > kMaxHeaderRanges || nothing != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("receive a broadcast: the header of ", bytes.size(),
                     " bytes from the root is malformed; install one release on all nodes of the group"));
  }
  std::vector<ByteRange> ranges(count);
  for (ByteRange& range : ranges) reader(range);
  return ranges;
}

}  // namespace tensorcast::helper
