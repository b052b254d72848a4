#include "core/handles/codec.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/handles/wire.h"

namespace tensorcast {
namespace {

constexpr std::string_view kMagic = "TCHS";

// The first byte of every frame. Part of the protocol: never renumber, only append.
enum FrameType : uint8_t {
  kHello = 1,
  kHelloAck = 2,
  kClaim = 3,
  kHandles = 4,
  kOffer = 5,
  kOffered = 6,
  kClosed = 7,
  kError = 8,
};

// What a HANDLES or OFFER frame describes.
enum MemoryKind : uint8_t { kHostMemory = 1, kDeviceMemory = 2, kFileMemory = 3 };

constexpr size_t kExtentBytes = 16;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

void WriteIpc(WireWriter& out, const IpcHandle& ipc) {
  out.String(ipc.device_uuid);
  out.String(ipc.opaque);
  out.U64(ipc.bytes);
}

IpcHandle ReadIpc(WireReader& in) {
  IpcHandle ipc;
  ipc.device_uuid = in.String();
  ipc.opaque = in.String();
  ipc.bytes = in.U64();
  return ipc;
}

void WriteHandles(WireWriter& out, const ReplicaHandles& handles) {
  out.String(handles.replica_id);
  out.String(handles.artifact_id);
  out.U64(handles.image_bytes);
  std::visit(Overloaded{[&](const HostHandles& host) {
                          out.U8(kHostMemory);
                          out.String(host.pool_id);
                          out.U64(host.pool_bytes);
                          out.U32(static_cast<uint32_t>(host.extents.size()));
                          for (const Extent& extent : host.extents) {
                            out.U64(extent.offset);
                            out.U64(extent.bytes);
                          }
                        },
                        [&](const DeviceHandles& device) {
                          out.U8(kDeviceMemory);
                          WriteIpc(out, device.ipc);
                        },
                        [&](const FileHandles& file) {
                          out.U8(kFileMemory);
                          out.U64(file.image_offset);
                        }},
             handles.memory);
}

HostHandles ReadHostHandles(WireReader& in) {
  HostHandles host;
  host.pool_id = in.String();
  host.pool_bytes = in.U64();
  const uint32_t count = in.U32();
  if (count > in.remaining() / kExtentBytes) {
    in.Fail("more extents than the frame holds");
    return host;
  }
  host.extents.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t offset = in.U64();
    host.extents.push_back({offset, in.U64()});
  }
  return host;
}

HandlesFrame ReadHandles(WireReader& in) {
  HandlesFrame frame;
  frame.handles.replica_id = in.String();
  frame.handles.artifact_id = in.String();
  frame.handles.image_bytes = in.U64();
  switch (in.U8()) {
    case kHostMemory:
      frame.handles.memory = ReadHostHandles(in);
      break;
    case kDeviceMemory:
      frame.handles.memory = DeviceHandles{ReadIpc(in)};
      break;
    case kFileMemory:
      frame.handles.memory = FileHandles{in.U64()};
      break;
    default:
      in.Fail("an unknown kind of memory");
  }
  return frame;
}

void WriteOffer(WireWriter& out, const OfferFrame& offer) {
  out.U8(offer.ipc ? kDeviceMemory : kHostMemory);
  out.U64(offer.bytes);
  if (offer.ipc) WriteIpc(out, *offer.ipc);
}

OfferFrame ReadOffer(WireReader& in) {
  OfferFrame frame;
  const uint8_t kind = in.U8();
  if (kind != kHostMemory && kind != kDeviceMemory) in.Fail("an unknown kind of memory");
  frame.bytes = in.U64();
  if (kind == kDeviceMemory) frame.ipc = ReadIpc(in);
  return frame;
}

void CheckMagic(WireReader& in) {
  if (in.Bytes(kMagic.size()) != kMagic) in.Fail("the magic of another protocol");
}

// The layouts of HELLO and HELLO_ACK may grow at their end in later versions, so they read past what they
// know.
HelloFrame ReadHello(WireReader& in) {
  CheckMagic(in);
  HelloFrame frame;
  frame.version_min = in.U16();
  frame.version_max = in.U16();
  if (frame.version_min == 0 || frame.version_min > frame.version_max) in.Fail("an empty range of versions");
  in.SkipRest();
  return frame;
}

HelloAckFrame ReadHelloAck(WireReader& in) {
  CheckMagic(in);
  HelloAckFrame frame{in.U16()};
  in.SkipRest();
  return frame;
}

ErrorFrame ReadError(WireReader& in) {
  const uint16_t code = in.U16();
  std::string message = in.String();
  if (code == 0) in.Fail("an error whose code is OK");
  // Status::code() gives kUnknown for a code that this build does not know.
  return ErrorFrame{absl::Status(static_cast<absl::StatusCode>(code), message)};
}

}  // namespace

const char* FrameName(const Frame& frame) {
  static constexpr const char* kNames[] = {"HELLO", "HELLO_ACK", "CLAIM",  "HANDLES",
                                           "OFFER", "OFFERED",   "CLOSED", "ERROR"};
  return kNames[frame.index()];
}

absl::StatusOr<std::string> EncodeFrame(const Frame& frame) {
  WireWriter out;
  out.U32(0);  // the length, once it is known
  std::visit(Overloaded{[&](const HelloFrame& f) {
                          out.U8(kHello);
                          out.Bytes(kMagic);
                          out.U16(f.version_min);
                          out.U16(f.version_max);
                        },
                        [&](const HelloAckFrame& f) {
                          out.U8(kHelloAck);
                          out.Bytes(kMagic);
                          out.U16(f.version);
                        },
                        [&](const ClaimFrame& f) {
                          out.U8(kClaim);
                          out.String(f.ticket);
                        },
                        [&](const HandlesFrame& f) {
                          out.U8(kHandles);
                          WriteHandles(out, f.handles);
                        },
                        [&](const OfferFrame& f) {
                          out.U8(kOffer);
                          WriteOffer(out, f);
                        },
                        [&](const OfferedFrame& f) {
                          out.U8(kOffered);
                          out.String(f.token);
                        },
                        [&](const ClosedFrame&) { out.U8(kClosed); },
                        [&](const ErrorFrame& f) {
                          out.U8(kError);
                          out.U16(static_cast<uint16_t>(f.status.raw_code()));
                          out.String(f.status.message().substr(0, kMaxErrorMessageBytes));
                        }},
             frame);
  TC_ASSIGN_OR_RETURN(std::string bytes, std::move(out).Finish());
  const size_t length = bytes.size() - kFramePrefixBytes;
  if (length > kMaxServerFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a ", FrameName(frame), " frame of ", length,
                                                   " bytes is longer than the ", kMaxServerFrameBytes,
                                                   " that the handle socket carries"));
  }
  PutU32(bytes.data(), static_cast<uint32_t>(length));
  return bytes;
}

absl::StatusOr<size_t> DecodeFramePrefix(std::span<const std::byte, kFramePrefixBytes> prefix,
                                         size_t max_bytes) {
  WireReader in(prefix);
  const size_t length = in.U32();
  if (length == 0 || length > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle socket: a frame of ", length, " bytes where 1 to ", max_bytes, " are allowed"));
  }
  return length;
}

absl::StatusOr<Frame> DecodeFrame(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  Frame frame;
  switch (in.U8()) {
    case kHello:
      frame = ReadHello(in);
      break;
    case kHelloAck:
      frame = ReadHelloAck(in);
      break;
    case kClaim:
      frame = ClaimFrame{in.String()};
      break;
    case kHandles:
      frame = ReadHandles(in);
      break;
    case kOffer:
      frame = ReadOffer(in);
      break;
    case kOffered:
      frame = OfferedFrame{in.String()};
      break;
    case kClosed:
      frame = ClosedFrame{};
      break;
    case kError:
      frame = ReadError(in);
      break;
    default:
      in.Fail("an unknown type of frame");
  }
  TC_RETURN_IF_ERROR(in.Finish());
  return frame;
}

}  // namespace tensorcast
