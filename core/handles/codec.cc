#include "core/handles/codec.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast {
namespace {

constexpr std::string_view kMagic = "TCHS";

// The first byte of every frame. Part of the protocol: never renumber, only append.
constexpr uint8_t kHello = 1;
constexpr uint8_t kHelloAck = 2;
constexpr uint8_t kClaim = 3;
constexpr uint8_t kHandles = 4;
constexpr uint8_t kOffer = 5;
constexpr uint8_t kOffered = 6;
constexpr uint8_t kClosed = 7;
constexpr uint8_t kError = 8;
constexpr uint8_t kDescriptors = 9;
constexpr uint8_t kFollow = 10;
constexpr uint8_t kHave = 11;
constexpr uint8_t kHaveEnd = 12;
constexpr uint8_t kOpening = 13;
constexpr uint8_t kStream = 14;
constexpr uint8_t kRing = 15;
constexpr uint8_t kOfferFiles = 16;
constexpr uint8_t kHandOver = 17;
constexpr uint8_t kParts = 18;

// What a HANDLES, OFFER or HAND_OVER frame describes.
constexpr uint8_t kHostMemory = 1;
constexpr uint8_t kDeviceMemory = 2;
constexpr uint8_t kFileMemory = 3;
constexpr uint8_t kReplicaMemory = 4;

constexpr size_t kSegmentHandleBytes = 12;
constexpr size_t kExtentBytes = 28;
constexpr size_t kPartBytes = 24;
static_assert(1 + sizeof(uint32_t) + kMaxPartsPerFrame * kPartBytes <= kMaxClientFrameBytes);
constexpr uint32_t kHaveWordBits = 64;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void WriteIpc(ByteWriter& out, const IpcHandle& ipc) {
  out.PutString<uint16_t>(ipc.device_uuid);
  out.PutString<uint16_t>(ipc.opaque);
  out.Put(ipc.bytes);
}

IpcHandle ReadIpc(ByteReader& in) {
  IpcHandle ipc;
  ipc.device_uuid = std::string(in.GetString<uint16_t>());
  ipc.opaque = std::string(in.GetString<uint16_t>());
  ipc.bytes = in.Get<uint64_t>();
  return ipc;
}

void WriteHandles(ByteWriter& out, const ReplicaHandles& handles) {
  out.PutString<uint16_t>(handles.replica_id);
  out.PutString<uint16_t>(handles.artifact_id);
  out.Put(handles.image_bytes);
  std::visit(Overloaded{[&](const HostHandles& host) {
                          out.Put(kHostMemory);
                          out.PutString<uint16_t>(host.pool_id);
                          out.Put(static_cast<uint32_t>(host.segments.size()));
                          for (const SegmentHandle& segment : host.segments) {
                            out.Put(segment.number);
                            out.Put(segment.bytes);
                          }
                          out.Put(static_cast<uint32_t>(host.extents.size()));
                          for (const SegmentExtent& extent : host.extents) {
                            out.Put(extent.image_offset);
                            out.Put(extent.segment);
                            out.Put(extent.offset);
                            out.Put(extent.bytes);
                          }
                        },
                        [&](const DeviceHandles& device) {
                          out.Put(kDeviceMemory);
                          WriteIpc(out, device.ipc);
                        },
                        [&](const FileHandles& file) {
                          out.Put(kFileMemory);
                          out.Put(file.image_offset);
                        }},
             handles.memory);
}

// How many of `each_bytes` follow. Fails before memory is reserved for them, since the count comes from
// outside.
uint32_t ReadCount(ByteReader& in, size_t each_bytes, const char* what) {
  const uint32_t count = in.Get<uint32_t>();
  if (count <= in.remaining() / each_bytes) return count;
  in.Fail(what);
  return 0;
}

HostHandles ReadHostHandles(ByteReader& in) {
  HostHandles host;
  host.pool_id = std::string(in.GetString<uint16_t>());
  host.segments.resize(ReadCount(in, kSegmentHandleBytes, "more segments than the frame holds"));
  for (SegmentHandle& segment : host.segments) {
    segment.number = in.Get<uint32_t>();
    segment.bytes = in.Get<uint64_t>();
  }
  host.extents.resize(ReadCount(in, kExtentBytes, "more extents than the frame holds"));
  for (SegmentExtent& extent : host.extents) {
    extent.image_offset = in.Get<uint64_t>();
    extent.segment = in.Get<uint32_t>();
    extent.offset = in.Get<uint64_t>();
    extent.bytes = in.Get<uint64_t>();
  }
  return host;
}

HandlesFrame ReadHandles(ByteReader& in) {
  HandlesFrame frame;
  frame.handles.replica_id = std::string(in.GetString<uint16_t>());
  frame.handles.artifact_id = std::string(in.GetString<uint16_t>());
  frame.handles.image_bytes = in.Get<uint64_t>();
  switch (in.Get<uint8_t>()) {
    case kHostMemory:
      frame.handles.memory = ReadHostHandles(in);
      break;
    case kDeviceMemory:
      frame.handles.memory = DeviceHandles{ReadIpc(in)};
      break;
    case kFileMemory:
      frame.handles.memory = FileHandles{in.Get<uint64_t>()};
      break;
    default:
      in.Fail("an unknown kind of memory");
  }
  return frame;
}

void WriteOffer(ByteWriter& out, const OfferFrame& offer) {
  out.Put(offer.ipc ? kDeviceMemory : kHostMemory);
  out.Put(offer.bytes);
  if (offer.ipc) WriteIpc(out, *offer.ipc);
}

OfferFrame ReadOffer(ByteReader& in) {
  OfferFrame frame;
  const uint8_t kind = in.Get<uint8_t>();
  if (kind != kHostMemory && kind != kDeviceMemory) in.Fail("an unknown kind of memory");
  frame.bytes = in.Get<uint64_t>();
  if (kind == kDeviceMemory) frame.ipc = ReadIpc(in);
  return frame;
}

OfferFilesFrame ReadOfferFiles(ByteReader& in) {
  OfferFilesFrame frame{in.Get<uint32_t>()};
  if (frame.count == 0 || frame.count > kMaxOfferedFiles) in.Fail("no files, or too many");
  return frame;
}

void WriteHandOver(ByteWriter& out, const HandOverFrame& frame) {
  if (frame.replica_id.empty()) {
    out.Put(kHostMemory);
    out.Put(frame.bytes);
    return;
  }
  out.Put(kReplicaMemory);
  out.PutString<uint16_t>(frame.pool_id);
  out.PutString<uint16_t>(frame.replica_id);
}

HandOverFrame ReadHandOver(ByteReader& in) {
  HandOverFrame frame;
  switch (in.Get<uint8_t>()) {
    case kHostMemory:
      frame.bytes = in.Get<uint64_t>();
      break;
    case kReplicaMemory:
      frame.pool_id = std::string(in.GetString<uint16_t>());
      frame.replica_id = std::string(in.GetString<uint16_t>());
      if (frame.replica_id.empty()) in.Fail("a replica without an id");
      break;
    default:
      in.Fail("an unknown kind of memory");
  }
  return frame;
}

PartsFrame ReadParts(ByteReader& in) {
  PartsFrame frame;
  frame.parts.resize(ReadCount(in, kPartBytes, "more parts than the frame holds"));
  for (HandedPart& part : frame.parts) {
    part.image_offset = in.Get<uint64_t>();
    part.bytes = in.Get<uint64_t>();
    part.offset = in.Get<uint64_t>();
  }
  return frame;
}

void CheckMagic(ByteReader& in) {
  if (in.GetBytes(kMagic.size()) != kMagic) in.Fail("the magic of another protocol");
}

// The layouts of HELLO and HELLO_ACK may grow at their end in later versions, so they read past what they
// know.
HelloFrame ReadHello(ByteReader& in) {
  CheckMagic(in);
  HelloFrame frame{in.Get<uint16_t>()};
  in.GetBytes(in.remaining());
  return frame;
}

HelloAckFrame ReadHelloAck(ByteReader& in) {
  CheckMagic(in);
  HelloAckFrame frame{in.Get<uint16_t>()};
  in.GetBytes(in.remaining());
  return frame;
}

void WriteStatus(ByteWriter& out, const absl::Status& status) {
  out.Put(static_cast<uint16_t>(status.raw_code()));
  out.PutString<uint16_t>(status.message().substr(0, kMaxErrorMessageBytes));
}

absl::Status ReadStatus(ByteReader& in) {
  const uint16_t code = in.Get<uint16_t>();
  const std::string_view message = in.GetString<uint16_t>();
  // Status::code() gives kUnknown for a code that this build does not know.
  return absl::Status(static_cast<absl::StatusCode>(code), Printable(message));
}

ErrorFrame ReadError(ByteReader& in) {
  ErrorFrame frame{ReadStatus(in)};
  if (frame.status.ok()) in.Fail("an error with the code OK");
  return frame;
}

HaveEndFrame ReadHaveEnd(ByteReader& in) {
  const size_t begin = in.position();
  HaveEndFrame frame{ReadStatus(in)};
  if (frame.status.ok() && in.position() > begin + 2 * sizeof(uint16_t)) {
    in.Fail("an end that is OK says why");
  }
  return frame;
}

HaveFrame ReadHave(ByteReader& in) {
  HaveFrame frame;
  frame.first_chunk = in.Get<uint32_t>();
  if (frame.first_chunk % kHaveWordBits != 0) in.Fail("a first chunk that does not begin a word");
  frame.words.resize(ReadCount(in, sizeof(uint64_t), "more chunks than the frame holds"));
  for (uint64_t& word : frame.words) word = in.Get<uint64_t>();
  return frame;
}

RingFrame ReadRing(ByteReader& in) {
  RingFrame frame;
  frame.token = std::string(in.GetString<uint16_t>());
  frame.shape.slots = in.Get<uint32_t>();
  frame.shape.slot_bytes = in.Get<uint32_t>();
  return frame;
}

}  // namespace

const char* FrameName(const Frame& frame) {
  static constexpr const char* kNames[] = {"HELLO",       "HELLO_ACK", "CLAIM",   "HANDLES",     "OFFER",
                                           "OFFERED",     "CLOSED",    "ERROR",   "DESCRIPTORS", "FOLLOW",
                                           "HAVE",        "HAVE_END",  "OPENING", "STREAM",      "RING",
                                           "OFFER_FILES", "HAND_OVER", "PARTS"};
  return kNames[frame.index()];
}

absl::StatusOr<std::string> EncodeFrame(const Frame& frame) {
  ByteWriter out;
  out.Put(uint32_t{0});  // the length, once it is known
  std::visit(Overloaded{[&](const HelloFrame& f) {
                          out.Put(kHello);
                          out.Put(kMagic);
                          out.Put(f.version);
                        },
                        [&](const HelloAckFrame& f) {
                          out.Put(kHelloAck);
                          out.Put(kMagic);
                          out.Put(f.version);
                        },
                        [&](const ClaimFrame& f) {
                          out.Put(kClaim);
                          out.PutString<uint16_t>(f.ticket);
                        },
                        [&](const HandlesFrame& f) {
                          out.Put(kHandles);
                          WriteHandles(out, f.handles);
                        },
                        [&](const OfferFrame& f) {
                          out.Put(kOffer);
                          WriteOffer(out, f);
                        },
                        [&](const OfferedFrame& f) {
                          out.Put(kOffered);
                          out.PutString<uint16_t>(f.token);
                        },
                        [&](const ClosedFrame&) { out.Put(kClosed); },
                        [&](const ErrorFrame& f) {
                          out.Put(kError);
                          WriteStatus(out, f.status);
                        },
                        [&](const DescriptorsFrame&) { out.Put(kDescriptors); },
                        [&](const FollowFrame&) { out.Put(kFollow); },
                        [&](const HaveFrame& f) {
                          out.Put(kHave);
                          out.Put(f.first_chunk);
                          out.Put(static_cast<uint32_t>(f.words.size()));
                          for (const uint64_t word : f.words) out.Put(word);
                        },
                        [&](const HaveEndFrame& f) {
                          out.Put(kHaveEnd);
                          WriteStatus(out, f.status);
                        },
                        [&](const OpeningFrame&) { out.Put(kOpening); },
                        [&](const StreamFrame& f) {
                          out.Put(kStream);
                          out.Put(f.image_bytes);
                        },
                        [&](const RingFrame& f) {
                          out.Put(kRing);
                          out.PutString<uint16_t>(f.token);
                          out.Put(f.shape.slots);
                          out.Put(f.shape.slot_bytes);
                        },
                        [&](const OfferFilesFrame& f) {
                          out.Put(kOfferFiles);
                          out.Put(f.count);
                        },
                        [&](const HandOverFrame& f) {
                          out.Put(kHandOver);
                          WriteHandOver(out, f);
                        },
                        [&](const PartsFrame& f) {
                          out.Put(kParts);
                          out.Put(static_cast<uint32_t>(f.parts.size()));
                          for (const HandedPart& part : f.parts) {
                            out.Put(part.image_offset);
                            out.Put(part.bytes);
                            out.Put(part.offset);
                          }
                        }},
             frame);
  if (!out.ok()) {
    return absl::InvalidArgumentError("a field is longer than the 65535 bytes that fit its length");
  }
  const size_t length = out.size() - kFramePrefixBytes;
  if (length > kMaxServerFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a ", FrameName(frame), " frame of ", length,
                                                   " bytes is longer than the ", kMaxServerFrameBytes,
                                                   " that the handle socket carries"));
  }
  out.Overwrite(0, static_cast<uint32_t>(length));
  return out.Take();
}

absl::StatusOr<size_t> DecodeFramePrefix(std::span<const std::byte, kFramePrefixBytes> prefix,
                                         size_t max_bytes) {
  ByteReader in(AsText(prefix));
  const size_t length = in.Get<uint32_t>();
  if (length == 0 || length > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle socket: a frame of ", length, " bytes where 1 to ", max_bytes, " are allowed"));
  }
  return length;
}

absl::StatusOr<Frame> DecodeFrame(std::span<const std::byte> bytes) {
  ByteReader in(AsText(bytes));
  Frame frame;
  switch (in.Get<uint8_t>()) {
    case kHello:
      frame = ReadHello(in);
      break;
    case kHelloAck:
      frame = ReadHelloAck(in);
      break;
    case kClaim:
      frame = ClaimFrame{std::string(in.GetString<uint16_t>())};
      break;
    case kHandles:
      frame = ReadHandles(in);
      break;
    case kOffer:
      frame = ReadOffer(in);
      break;
    case kOffered:
      frame = OfferedFrame{std::string(in.GetString<uint16_t>())};
      break;
    case kClosed:
      frame = ClosedFrame{};
      break;
    case kError:
      frame = ReadError(in);
      break;
    case kDescriptors:
      frame = DescriptorsFrame{};
      break;
    case kFollow:
      frame = FollowFrame{};
      break;
    case kHave:
      frame = ReadHave(in);
      break;
    case kHaveEnd:
      frame = ReadHaveEnd(in);
      break;
    case kOpening:
      frame = OpeningFrame{};
      break;
    case kStream:
      frame = StreamFrame{in.Get<uint64_t>()};
      break;
    case kRing:
      frame = ReadRing(in);
      break;
    case kOfferFiles:
      frame = ReadOfferFiles(in);
      break;
    case kHandOver:
      frame = ReadHandOver(in);
      break;
    case kParts:
      frame = ReadParts(in);
      break;
    default:
      in.Fail("an unknown type of frame");
  }
  // Nothing is skipped: what one side writes and the other does not read is a difference of versions, and
  // HELLO is for those.
  if (in.remaining() > 0) in.Fail("bytes behind the last field");
  if (!in.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle socket: ", in.failure(), " at byte ", in.position(), " of ", bytes.size()));
  }
  return frame;
}

}  // namespace tensorcast
