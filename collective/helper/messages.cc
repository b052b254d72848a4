#include "collective/helper/messages.h"

#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"

namespace tensorcast::helper {
namespace {

// The first byte of a request (FORMAT.md).
constexpr uint8_t kOpen = 1;
constexpr uint8_t kJoin = 2;
constexpr uint8_t kBroadcast = 3;
constexpr uint8_t kClose = 4;
constexpr uint8_t kMakeId = 5;
constexpr uint8_t kReceive = 6;
constexpr uint8_t kLeave = 7;

// The first byte of an answer.
constexpr uint8_t kOk = 0;
constexpr uint8_t kError = 1;
constexpr uint8_t kHello = 2;
constexpr uint8_t kId = 3;
constexpr uint8_t kRanges = 4;

// Enough of a message for people to know what it is.
constexpr size_t kMaxErrorBytes = 4096;

std::string Take(ByteReader& reader) { return std::string(reader.GetString<uint16_t>()); }

// Checked before it is used: a count decides how much memory is taken.
uint32_t TakeCount(ByteReader& reader, uint32_t max) {
  const uint32_t count = reader.Get<uint32_t>();
  if (count > max) reader.Fail("more items than a message may have");
  return reader.ok() ? count : 0;
}

void Put(ByteWriter& writer, const OpenRequest& open) {
  writer.Put(kOpen).PutString<uint16_t>(open.memory.device_uuid).PutString<uint16_t>(open.memory.opaque);
  writer.Put(open.memory.bytes);
}

void Put(ByteWriter& writer, const JoinRequest& join) {
  writer.Put(kJoin).PutString<uint16_t>(join.id).Put(join.world_size);
  writer.Put(static_cast<uint32_t>(join.ranks.size()));
  for (const JoinRequest::Rank& rank : join.ranks) {
    writer.Put(rank.rank).PutString<uint16_t>(rank.device_uuid);
  }
}

void PutMemories(ByteWriter& writer, const std::vector<uint32_t>& memories) {
  writer.Put(static_cast<uint32_t>(memories.size()));
  for (const uint32_t memory : memories) writer.Put(memory);
}

void PutRanges(ByteWriter& writer, const std::vector<ByteRange>& ranges) {
  writer.Put(static_cast<uint32_t>(ranges.size()));
  for (const ByteRange& range : ranges) writer.Put(range.offset).Put(range.bytes);
}

void Put(ByteWriter& writer, const BroadcastRequest& broadcast) {
  writer.Put(kBroadcast).Put(broadcast.communicator).Put(broadcast.root);
  PutMemories(writer, broadcast.memories);
  PutRanges(writer, broadcast.ranges);
}

void Put(ByteWriter& writer, const CloseRequest& close) { writer.Put(kClose).Put(close.memory); }

void Put(ByteWriter& writer, const MakeIdRequest&) { writer.Put(kMakeId); }

void Put(ByteWriter& writer, const ReceiveRequest& receive) {
  writer.Put(kReceive).Put(receive.communicator).Put(receive.root);
  PutMemories(writer, receive.memories);
}

void Put(ByteWriter& writer, const LeaveRequest& leave) { writer.Put(kLeave).Put(leave.communicator); }

void Put(ByteWriter& writer, uint32_t value) { writer.Put(kOk).Put(value); }

void Put(ByteWriter& writer, const Hello& hello) {
  writer.Put(kHello).Put(hello.version).PutString<uint16_t>(hello.library);
}

void Put(ByteWriter& writer, const std::string& id) { writer.Put(kId).PutString<uint16_t>(id); }

void Put(ByteWriter& writer, const std::vector<ByteRange>& ranges) {
  writer.Put(kRanges);
  PutRanges(writer, ranges);
}

std::vector<uint32_t> TakeMemories(ByteReader& reader) {
  std::vector<uint32_t> memories(TakeCount(reader, kMaxRanks));
  for (uint32_t& memory : memories) memory = reader.Get<uint32_t>();
  return memories;
}

ByteRange TakeRange(ByteReader& reader) {
  const uint64_t offset = reader.Get<uint64_t>();
  return {.offset = offset, .bytes = reader.Get<uint64_t>()};
}

std::vector<ByteRange> TakeRanges(ByteReader& reader) {
  std::vector<ByteRange> ranges(TakeCount(reader, kMaxRanges));
  for (ByteRange& range : ranges) range = TakeRange(reader);
  return ranges;
}

OpenRequest TakeOpen(ByteReader& reader) {
  OpenRequest open;
  open.memory.device_uuid = Take(reader);
  open.memory.opaque = Take(reader);
  open.memory.bytes = reader.Get<uint64_t>();
  return open;
}

JoinRequest TakeJoin(ByteReader& reader) {
  JoinRequest join;
  join.id = Take(reader);
  join.world_size = reader.Get<uint32_t>();
  const uint32_t count = TakeCount(reader, kMaxRanks);
  for (uint32_t i = 0; i < count; ++i) {
    JoinRequest::Rank& rank = join.ranks.emplace_back();
    rank.rank = reader.Get<uint32_t>();
    rank.device_uuid = Take(reader);
  }
  return join;
}

BroadcastRequest TakeBroadcast(ByteReader& reader) {
  BroadcastRequest broadcast;
  broadcast.communicator = reader.Get<uint32_t>();
  broadcast.root = reader.Get<uint32_t>();
  broadcast.memories = TakeMemories(reader);
  broadcast.ranges = TakeRanges(reader);
  return broadcast;
}

ReceiveRequest TakeReceive(ByteReader& reader) {
  ReceiveRequest receive;
  receive.communicator = reader.Get<uint32_t>();
  receive.root = reader.Get<uint32_t>();
  receive.memories = TakeMemories(reader);
  return receive;
}

Request TakeRequest(ByteReader& reader) {
  switch (reader.Get<uint8_t>()) {
    case kOpen:
      return TakeOpen(reader);
    case kJoin:
      return TakeJoin(reader);
    case kBroadcast:
      return TakeBroadcast(reader);
    case kClose:
      return CloseRequest{.memory = reader.Get<uint32_t>()};
    case kMakeId:
      return MakeIdRequest();
    case kReceive:
      return TakeReceive(reader);
    case kLeave:
      return LeaveRequest{.communicator = reader.Get<uint32_t>()};
    default:
      reader.Fail("an unknown kind of request");
      return CloseRequest();
  }
}

}  // namespace

std::string EncodeRequest(const Request& request) {
  ByteWriter writer;
  std::visit([&writer](const auto& each) { Put(writer, each); }, request);
  return writer.Take();
}

std::string EncodeReply(const absl::StatusOr<Reply>& reply) {
  ByteWriter writer;
  if (reply.ok()) {
    std::visit([&writer](const auto& each) { Put(writer, each); }, *reply);
  } else {
    writer.Put(kError).Put(static_cast<uint16_t>(reply.status().code()));
    writer.PutString<uint16_t>(reply.status().message().substr(0, kMaxErrorBytes));
  }
  return writer.Take();
}

absl::StatusOr<Request> DecodeRequest(std::string_view bytes) {
  ByteReader reader(bytes);
  Request request = TakeRequest(reader);
  if (reader.AtEnd()) return request;
  return absl::InvalidArgumentError(absl::StrCat("a message of ", bytes.size(),
                                                 " bytes: ", reader.ok() ? "too many" : reader.failure(),
                                                 " at byte ", reader.position()));
}

// The other process runs a foreign library. Nothing of its answer is used unless all of it can be read.
absl::StatusOr<Reply> DecodeReply(std::string_view bytes) {
  ByteReader reader(bytes);
  const uint8_t kind = reader.Get<uint8_t>();
  if (kind == kOk) {
    const uint32_t value = reader.Get<uint32_t>();
    if (reader.AtEnd()) return value;
  } else if (kind == kError) {
    const auto code = static_cast<absl::StatusCode>(reader.Get<uint16_t>());
    const std::string message = Take(reader);
    if (reader.AtEnd() && code != absl::StatusCode::kOk) return absl::Status(code, message);
  } else if (kind == kHello) {
    Hello hello{.version = reader.Get<uint32_t>()};
    hello.library = Take(reader);
    if (reader.AtEnd()) return hello;
  } else if (kind == kId) {
    std::string id = Take(reader);
    if (reader.AtEnd()) return id;
  } else if (kind == kRanges) {
    std::vector<ByteRange> ranges = TakeRanges(reader);
    if (reader.AtEnd()) return ranges;
  }
  return absl::InternalError(absl::StrCat("an answer of ", bytes.size(), " bytes cannot be read"));
}

std::string EncodeHeader(const std::vector<ByteRange>& ranges) {
  ByteWriter writer;
  // The second number is reserved: a receiver refuses a header in which it is not 0.
  writer.Put(static_cast<uint64_t>(ranges.size())).Put(uint64_t{0});
  for (const ByteRange& range : ranges) writer.Put(range.offset).Put(range.bytes);
  std::string header = writer.Take();
  header.resize(kHeaderBytes, '\0');
  return header;
}

absl::StatusOr<std::vector<ByteRange>> DecodeHeader(std::string_view bytes) {
  ByteReader reader(bytes);
  const uint64_t count = reader.Get<uint64_t>();
  const uint64_t nothing = reader.Get<uint64_t>();
  if (bytes.size() != kHeaderBytes || count > kMaxHeaderRanges || nothing != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("receive a broadcast: ", bytes.size(), " bytes from another process are not a header"));
  }
  std::vector<ByteRange> ranges(count);
  for (ByteRange& range : ranges) range = TakeRange(reader);
  return ranges;
}

}  // namespace tensorcast::helper
