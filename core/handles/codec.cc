#include "core/handles/codec.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/byte_fields.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast {
namespace {

constexpr std::string_view kMagic = "TCHS";

// The kinds of memory in an OFFER or HAND_OVER frame. HANDLES numbers the alternatives of its memory in the
// same way, and the first byte of a frame's body is the number of its alternative in Frame. Both variants are
// part of the protocol: only append to them.
constexpr uint8_t kHostMemory = 1;
constexpr uint8_t kDeviceMemory = 2;
constexpr uint8_t kReplicaMemory = 4;
constexpr uint8_t kFirstType = 1;

constexpr size_t kPartBytes = 24;
static_assert(1 + sizeof(uint32_t) + kMaxPartsPerFrame * kPartBytes <= kMaxClientFrameBytes);
constexpr uint32_t kHaveWordBits = 64;

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename Io>
void StatusFields(Io& io, absl::Status& status) {
  auto code = static_cast<uint16_t>(status.raw_code());
  // Cut, so that an ERROR always fits a frame.
  std::string message(status.message().substr(0, kMaxErrorMessageBytes));
  io(code, message);
  io.Check(code != 0 || message.empty(), "a message with the status OK");
  // Status::code() gives kUnknown for a code that this build does not know.
  // Another process wrote the message, which may reach a terminal.
  if constexpr (Io::kReads) status = absl::Status(static_cast<absl::StatusCode>(code), Printable(message));
}

// The layouts of HELLO and HELLO_ACK may grow at their end in later versions, so they read past what they
// know.
template <typename Io>
void GreetingFields(Io& io, uint16_t& version) {
  io.Literal(kMagic, "the magic of another protocol");
  io(version);
  if constexpr (Io::kReads) io.bytes().GetBytes(io.bytes().remaining());
}

}  // namespace

// One function declares the fields of a frame for both directions (base/byte_fields.h), so that the writer
// and the reader cannot differ. A frame without a function here has no fields.
void Fields(auto& io, SegmentHandle& segment) { io(segment.number, segment.bytes); }
void Fields(auto& io, SegmentExtent& extent) {
  io(extent.image_offset, extent.segment, extent.offset, extent.bytes);
}
void Fields(auto& io, HostHandles& host) { io(host.pool_id, host.segments, host.extents); }
void Fields(auto& io, DeviceHandles& device) { io(device.ipc); }
void Fields(auto& io, FileHandles& file) { io(file.image_offset); }
void Fields(auto& io, HandedPart& part) { io(part.image_offset, part.bytes, part.offset); }

void Fields(auto& io, HelloFrame& frame) { GreetingFields(io, frame.version); }
void Fields(auto& io, HelloAckFrame& frame) { GreetingFields(io, frame.version); }
void Fields(auto& io, ClaimFrame& frame) { io(frame.ticket); }
void Fields(auto& io, HandlesFrame& frame) {
  io(frame.handles.replica_id, frame.handles.artifact_id, frame.handles.image_bytes);
  io.template OneOf<kHostMemory>(frame.handles.memory, "an unknown kind of memory");
}
void Fields(auto& io, OfferFrame& frame) {
  uint8_t kind = frame.ipc ? kDeviceMemory : kHostMemory;
  io(kind, frame.bytes);
  io.Check(kind == kHostMemory || kind == kDeviceMemory, "an unknown kind of memory");
  // To a reader the handle is not there yet.
  if (kind == kDeviceMemory) io(frame.ipc ? *frame.ipc : frame.ipc.emplace());
}
void Fields(auto& io, OfferFilesFrame& frame) {
  io(frame.count);
  io.Check(frame.count > 0 && frame.count <= kMaxOfferedFiles, "0 files or too many files");
}
void Fields(auto& io, OfferedFrame& frame) { io(frame.token); }
void Fields(auto& io, ErrorFrame& frame) {
  StatusFields(io, frame.status);
  io.Check(!frame.status.ok(), "an error with the code OK");
}
void Fields(auto& io, HaveFrame& frame) {
  io(frame.first_chunk);
  io.Check(frame.first_chunk % kHaveWordBits == 0, "a first chunk that is not a multiple of 64");
  io(frame.words);
}
void Fields(auto& io, HaveEndFrame& frame) { StatusFields(io, frame.status); }
void Fields(auto& io, StreamFrame& frame) { io(frame.image_bytes); }
void Fields(auto& io, HandOverFrame& frame) {
  uint8_t kind = frame.replica_id.empty() ? kHostMemory : kReplicaMemory;
  io(kind);
  if (kind == kHostMemory) return io(frame.bytes);
  io.Check(kind == kReplicaMemory, "an unknown kind of memory");
  io(frame.pool_id, frame.replica_id);
  io.Check(!frame.replica_id.empty(), "a replica without an id");
}
void Fields(auto& io, PartsFrame& frame) { io(frame.parts); }
void Fields(auto& io, RingFrame& frame) { io(frame.token, frame.shape.slots, frame.shape.slot_bytes); }

const char* FrameName(const Frame& frame) {
  static constexpr const char* kNames[] = {"HELLO",       "HELLO_ACK", "CLAIM",   "HANDLES",     "OFFER",
                                           "OFFERED",     "CLOSED",    "ERROR",   "DESCRIPTORS", "FOLLOW",
                                           "HAVE",        "HAVE_END",  "OPENING", "STREAM",      "RING",
                                           "OFFER_FILES", "HAND_OVER", "PARTS"};
  return kNames[frame.index()];
}

absl::StatusOr<std::string> EncodeFrame(const Frame& frame) {
  FieldWriter<uint16_t> writer;
  ByteWriter& out = writer.bytes();
  out.Put(uint32_t{0});  // the length, once it is known
  writer.OneOf<kFirstType>(frame, "");
  if (!out.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("encode the frame ", FrameName(frame),
                     ": a name or a path has more than 65535 bytes; use a shorter name or path"));
  }
  // The length counts what is behind itself.
  const size_t length = out.size() - kFramePrefixBytes;
  if (length > kMaxServerFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("encode the frame ", FrameName(frame), ": the frame has ",
                                                   length, " bytes, and at most ", kMaxServerFrameBytes,
                                                   " are allowed; send less at once"));
  }
  out.Overwrite(0, static_cast<uint32_t>(length));
  return out.Take();
}

absl::StatusOr<size_t> DecodeFramePrefix(std::span<const std::byte, kFramePrefixBytes> prefix,
                                         size_t max_bytes) {
  ByteReader in(AsText(prefix));
  const size_t length = in.Get<uint32_t>();
  if (length == 0 || length > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "read a frame: the frame has ", length, " bytes, and 1 to ", max_bytes, " are allowed", kOneRelease));
  }
  return length;
}

absl::StatusOr<Frame> DecodeFrame(std::span<const std::byte> bytes) {
  FieldReader<uint16_t> reader(AsText(bytes));
  ByteReader& in = reader.bytes();
  Frame frame;
  reader.OneOf<kFirstType>(frame, "an unknown type");
  // Nothing is skipped: what one side writes and the other does not read is a difference of versions, and
  // HELLO is for those.
  if (in.remaining() > 0) in.Fail("bytes behind the last field");
  if (!in.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("decode a frame: the frame has ", in.failure(),
                                                   " at byte ", in.position(), " of ", bytes.size(),
                                                   kOneRelease));
  }
  return frame;
}

}  // namespace tensorcast
