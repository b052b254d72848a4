#include "collective/helper/messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"

namespace tensorcast::helper {
namespace {

constexpr uint8_t kOpen = 1;
constexpr uint8_t kJoin = 2;
constexpr uint8_t kBroadcast = 3;
constexpr uint8_t kClose = 4;

constexpr uint8_t kOk = 0;
constexpr uint8_t kError = 1;

// Enough of a message for people to know what it is.
constexpr size_t kMostErrorBytes = 4096;

std::string Take(ByteReader& reader) { return std::string(reader.GetString<uint16_t>()); }

uint32_t TakeCount(ByteReader& reader, uint32_t most) {
  const uint32_t count = reader.Get<uint32_t>();
  if (count > most) reader.Fail("more items than a message may have");
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

void Put(ByteWriter& writer, const BroadcastRequest& broadcast) {
  writer.Put(kBroadcast).Put(broadcast.communicator).Put(broadcast.root);
  writer.Put(static_cast<uint32_t>(broadcast.memories.size()));
  for (const uint32_t memory : broadcast.memories) writer.Put(memory);
  writer.Put(static_cast<uint32_t>(broadcast.ranges.size()));
  for (const ByteRange& range : broadcast.ranges) writer.Put(range.offset).Put(range.bytes);
}

void Put(ByteWriter& writer, const CloseRequest& close) { writer.Put(kClose).Put(close.memory); }

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
  const uint32_t count = TakeCount(reader, kMostRanks);
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
  const uint32_t memories = TakeCount(reader, kMostRanks);
  for (uint32_t i = 0; i < memories; ++i) broadcast.memories.push_back(reader.Get<uint32_t>());
  const uint32_t ranges = TakeCount(reader, kMostRanges);
  for (uint32_t i = 0; i < ranges; ++i) {
    ByteRange& range = broadcast.ranges.emplace_back();
    range.offset = reader.Get<uint64_t>();
    range.bytes = reader.Get<uint64_t>();
  }
  return broadcast;
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

std::string EncodeReply(const absl::StatusOr<uint32_t>& reply) {
  ByteWriter writer;
  if (reply.ok()) {
    writer.Put(kOk).Put(*reply);
  } else {
    writer.Put(kError).Put(static_cast<uint16_t>(reply.status().code()));
    writer.PutString<uint16_t>(reply.status().message().substr(0, kMostErrorBytes));
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

absl::StatusOr<uint32_t> DecodeReply(std::string_view bytes) {
  ByteReader reader(bytes);
  const uint8_t kind = reader.Get<uint8_t>();
  if (kind == kOk) {
    const uint32_t value = reader.Get<uint32_t>();
    if (reader.AtEnd()) return value;
  } else if (kind == kError) {
    const auto code = static_cast<absl::StatusCode>(reader.Get<uint16_t>());
    const std::string message = Take(reader);
    if (reader.AtEnd() && code != absl::StatusCode::kOk) return absl::Status(code, message);
  }
  return absl::InternalError(absl::StrCat("an answer of ", bytes.size(), " bytes that is none"));
}

}  // namespace tensorcast::helper
