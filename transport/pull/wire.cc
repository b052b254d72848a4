#include "transport/pull/wire.h"

#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "base/text.h"
#include "core/artifact/layout.h"

namespace tensorcast::transport::pull {
namespace {

constexpr std::string_view kHelloMagic = "TCTP";
constexpr std::string_view kDescriptorMagic = "TCPD";
constexpr uint8_t kDescriptorVersion = 1;
constexpr size_t kSegmentBytes = 1 + 8 + 8;
constexpr size_t kFrameHeaderBytes = 8;
constexpr size_t kPaddingBytes = 3;
constexpr size_t kDataBodyBytes = kDataHeadBytes - kFrameHeaderBytes;  // in front of the piece
constexpr uint8_t kLastStatusCode = static_cast<uint8_t>(absl::StatusCode::kUnauthenticated);

// The numbers are part of the protocol.
enum class Type : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kError = 3,
  kRequest = 4,
  kCancel = 5,
  kBye = 6,
  kData = 7,
  kHave = 8,
  kNotHere = 9,
  kFollow = 10,
};

// The head of each frame: its type, padding, and how many bytes follow, a piece included.
std::string MakeFrame(Type type, std::string_view body, size_t piece_bytes = 0) {
  return ByteWriter()
      .Put(static_cast<uint8_t>(type))
      .Put(std::string_view("\0\0\0", kPaddingBytes))
      .Put(static_cast<uint32_t>(body.size() + piece_bytes))
      .Put(body)
      .Take();
}

std::string Encode(const Hello& hello) {
  // Cut, since the other end refuses a longer one.
  const std::string_view trace = std::string_view(hello.traceparent).substr(0, kMaxTraceparentBytes);
  return MakeFrame(Type::kHello, ByteWriter()
                                     .Put(kHelloMagic)
                                     .Put(hello.version)
                                     .Put(hello.max_piece_bytes)
                                     .Put(AsBytes(hello.pull_id))
                                     .PutString<uint16_t>(trace)
                                     .Take());
}

std::string Encode(const Welcome& welcome) {
  return MakeFrame(Type::kWelcome, ByteWriter()
                                       .Put(welcome.version)
                                       .Put(welcome.max_requests)
                                       .Put(welcome.max_request_bytes)
                                       .Put(welcome.image_bytes)
                                       .Put(welcome.chunk_bytes)
                                       .Take());
}

std::string Encode(const Error& error) {
  // Cut, since the other end refuses a longer one.
  const std::string_view text = error.status.message().substr(0, kMaxErrorTextBytes);
  return MakeFrame(Type::kError, ByteWriter()
                                     .Put(error.request_id)
                                     .Put(static_cast<uint8_t>(error.status.code()))
                                     .PutString<uint16_t>(text)
                                     .Take());
}

std::string Encode(const Request& request) {
  return MakeFrame(Type::kRequest,
                   ByteWriter().Put(request.id).Put(request.offset).Put(request.bytes).Take());
}

std::string Encode(const Cancel& cancel) {
  return MakeFrame(Type::kCancel, ByteWriter().Put(cancel.id).Take());
}

std::string Encode(const Bye&) { return MakeFrame(Type::kBye, ""); }

std::string Encode(const Data& data) {
  // The channel sends the piece behind this head.
  return MakeFrame(Type::kData, ByteWriter().Put(data.request_id).Put(data.offset).Take(), data.bytes);
}

std::string Encode(const Have& have) {
  ByteWriter body;
  body.Put(have.first);
  for (const uint64_t word : have.words) body.Put(word);
  return MakeFrame(Type::kHave, body.Take());
}

std::string Encode(const NotHere& not_here) {
  return MakeFrame(Type::kNotHere, ByteWriter().Put(not_here.id).Take());
}

std::string Encode(const Follow&) { return MakeFrame(Type::kFollow, ""); }

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("decode a frame of the peer (", what,
                                                 "): the frame is malformed; run one release on both nodes"));
}

// Each decoder reads all of its fields and then asks once: behind the end a ByteReader gives zeros.
absl::StatusOr<Frame> DecodeHello(ByteReader body) {
  Hello hello;
  const bool magic = body.GetBytes(kHelloMagic.size()) == kHelloMagic;
  hello.version = body.Get<uint8_t>();
  hello.max_piece_bytes = body.Get<uint32_t>();
  const std::string_view id = body.GetBytes(hello.pull_id.size());
  const std::string_view trace = body.GetString<uint16_t>();
  if (!magic || !body.AtEnd() || trace.size() > kMaxTraceparentBytes) return Malformed("HELLO");
  hello.pull_id = PullIdFromBytes(id);
  hello.traceparent = std::string(trace);
  return hello;
}

absl::StatusOr<Frame> DecodeWelcome(ByteReader body) {
  Welcome welcome;
  welcome.version = body.Get<uint8_t>();
  welcome.max_requests = body.Get<uint32_t>();
  welcome.max_request_bytes = body.Get<uint64_t>();
  welcome.image_bytes = body.Get<uint64_t>();
  welcome.chunk_bytes = body.Get<uint64_t>();
  // With a limit of zero no request could ever be made.
  if (!body.AtEnd() || welcome.max_requests == 0 || welcome.max_request_bytes == 0) {
    return Malformed("WELCOME");
  }
  return welcome;
}

absl::StatusOr<Frame> DecodeError(ByteReader body) {
  Error error;
  error.request_id = body.Get<uint64_t>();
  const uint8_t code = body.Get<uint8_t>();
  const std::string_view text = body.GetString<uint16_t>();
  if (!body.AtEnd() || code == 0 || code > kLastStatusCode || text.size() > kMaxErrorTextBytes) {
    return Malformed("ERROR");
  }
  // Another process wrote the text, which may reach a terminal.
  error.status = absl::Status(static_cast<absl::StatusCode>(code), Printable(text));
  return error;
}

absl::StatusOr<Frame> DecodeRequest(ByteReader body) {
  Request request;
  request.id = body.Get<uint64_t>();
  request.offset = body.Get<uint64_t>();
  request.bytes = body.Get<uint64_t>();
  // Id 0 stands for the whole pull.
  if (!body.AtEnd() || request.id == kWholePull || request.bytes == 0) return Malformed("REQUEST");
  return request;
}

absl::StatusOr<Frame> DecodeCancel(ByteReader body) {
  const Cancel cancel{.id = body.Get<uint64_t>()};
  if (!body.AtEnd() || cancel.id == kWholePull) return Malformed("CANCEL");
  return cancel;
}

absl::StatusOr<Frame> DecodeBye(ByteReader body) {
  if (!body.AtEnd()) return Malformed("BYE");
  return Bye{};
}

absl::StatusOr<Frame> DecodeData(ByteReader body, uint32_t piece_bytes) {
  Data data{.bytes = piece_bytes};
  data.request_id = body.Get<uint64_t>();
  data.offset = body.Get<uint64_t>();
  if (!body.AtEnd() || data.request_id == kWholePull || piece_bytes == 0 || piece_bytes > kMaxPieceBytes) {
    return Malformed("DATA");
  }
  return data;
}

// Whether the words fit the image is checked by its connection, which knows the image.
absl::StatusOr<Frame> DecodeHave(ByteReader body) {
  Have have;
  have.first = body.Get<uint32_t>();
  const size_t words = body.remaining() / sizeof(uint64_t);
  for (size_t i = 0; i < words; ++i) have.words.push_back(body.Get<uint64_t>());
  if (!body.AtEnd() || words == 0 || words > kMaxHaveWords || have.first % kHaveWordBits != 0) {
    return Malformed("HAVE");
  }
  return have;
}

absl::StatusOr<Frame> DecodeNotHere(ByteReader body) {
  const NotHere not_here{.id = body.Get<uint64_t>()};
  if (!body.AtEnd() || not_here.id == kWholePull) return Malformed("NOT_HERE");
  return not_here;
}

absl::StatusOr<Frame> DecodeFollow(ByteReader body) {
  if (!body.AtEnd()) return Malformed("FOLLOW");
  return Follow{};
}

absl::StatusOr<Frame> DecodeBody(Type type, ByteReader body) {
  switch (type) {
    case Type::kHello:
      return DecodeHello(body);
    case Type::kWelcome:
      return DecodeWelcome(body);
    case Type::kError:
      return DecodeError(body);
    case Type::kRequest:
      return DecodeRequest(body);
    case Type::kCancel:
      return DecodeCancel(body);
    case Type::kBye:
      return DecodeBye(body);
    case Type::kHave:
      return DecodeHave(body);
    case Type::kNotHere:
      return DecodeNotHere(body);
    case Type::kFollow:
      return DecodeFollow(body);
    case Type::kData:
      break;
  }
  return Malformed("unknown");
}

bool IsType(uint8_t type) {
  return type >= static_cast<uint8_t>(Type::kHello) && type <= static_cast<uint8_t>(Type::kFollow);
}

}  // namespace

std::string EncodeFrame(const Frame& frame) {
  return std::visit([](const auto& one) { return Encode(one); }, frame);
}

absl::StatusOr<std::optional<DecodedFrame>> DecodeFrame(std::string_view bytes) {
  // What can be refused is refused at its first byte: a pending connection need not send more to be let go.
  if (!bytes.empty() && !IsType(static_cast<uint8_t>(bytes[0]))) return Malformed("unknown");
  if (bytes.size() < kFrameHeaderBytes) return std::nullopt;
  ByteReader reader(bytes);
  const auto type = static_cast<Type>(reader.Get<uint8_t>());
  const std::string_view padding = reader.GetBytes(kPaddingBytes);
  const uint32_t body_bytes = reader.Get<uint32_t>();
  if (padding != std::string_view("\0\0\0", kPaddingBytes)) return Malformed("unknown");
  const bool data = type == Type::kData;
  // Before the body is awaited: no peer can have this end buffer more than a frame.
  if (data ? body_bytes < kDataBodyBytes || body_bytes - kDataBodyBytes > kMaxPieceBytes
           : body_bytes > kMaxFrameHeadBytes - kFrameHeaderBytes) {
    return Malformed("over-long or too short");
  }
  const size_t head_bytes = data ? kDataBodyBytes : body_bytes;
  // Of DATA only the head is awaited: its piece goes straight to where it belongs.
  if (reader.remaining() < head_bytes) return std::nullopt;
  const ByteReader head(reader.GetBytes(head_bytes));
  absl::StatusOr<Frame> frame =
      data ? DecodeData(head, static_cast<uint32_t>(body_bytes - kDataBodyBytes)) : DecodeBody(type, head);
  if (!frame.ok()) return std::move(frame).status();
  std::optional<DecodedFrame> decoded(std::in_place);
  decoded->frame = *std::move(frame);
  decoded->bytes = kFrameHeaderBytes + head_bytes;
  return decoded;
}

absl::Status CheckVersion(const Hello& hello) {
  if (hello.version == kVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the receiver speaks version ", hello.version,
                                                    " of the pull protocol, and this source speaks version ",
                                                    kVersion, "; upgrade the older daemon"));
}

absl::Status CheckFilling(uint64_t image_bytes, uint64_t chunk_bytes) {
  TC_RETURN_IF_ERROR(CheckChunkBytes(chunk_bytes, image_bytes));
  if (image_bytes == 0 || (image_bytes - 1) / chunk_bytes >= kMaxFillingChunks) {
    return absl::InvalidArgumentError(absl::StrCat("serve a filling image of ", image_bytes,
                                                   " bytes in chunks of ", chunk_bytes,
                                                   " bytes: such an image must have 1 to ", kMaxFillingChunks,
                                                   " chunks; serve the image when it is complete"));
  }
  return absl::OkStatus();
}

std::string EncodeDescriptor(const Descriptor& descriptor) {
  CHECK(!descriptor.addresses.empty() && descriptor.addresses.size() <= kMaxAddresses);
  ByteWriter writer;
  writer.Put(kDescriptorMagic)
      .Put(kDescriptorVersion)
      .PutString<uint8_t>(descriptor.lane)
      .Put(AsBytes(descriptor.pull_id))
      .Put(descriptor.image_bytes)
      .Put(static_cast<uint8_t>(descriptor.addresses.size()));
  for (const std::string& address : descriptor.addresses) writer.PutString<uint8_t>(address);
  writer.PutString<uint16_t>(descriptor.source).Put(static_cast<uint8_t>(descriptor.rkeys.size()));
  for (const std::string& rkey : descriptor.rkeys) writer.PutString<uint16_t>(rkey);
  writer.Put(static_cast<uint32_t>(descriptor.segments.size()));
  for (const Descriptor::Segment& segment : descriptor.segments) {
    writer.Put(segment.rkey).Put(segment.address).Put(segment.bytes);
  }
  CHECK(writer.ok()) << "a name, an address or a key that is longer than its field holds";
  return writer.Take();
}

namespace {

absl::Status MalformedDescriptor(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("decode the descriptor of a pull: ", what, "; run one release on both nodes"));
}

absl::Status DecodeSegments(ByteReader& reader, Descriptor& descriptor) {
  const uint8_t rkeys = reader.Get<uint8_t>();
  for (int i = 0; i < rkeys && reader.ok(); ++i) descriptor.rkeys.emplace_back(reader.GetString<uint16_t>());
  const uint64_t segments = reader.Get<uint32_t>();
  if (!reader.ok()) return MalformedDescriptor(reader.failure());
  // Before memory is taken for so many.
  if (reader.remaining() != segments * kSegmentBytes) {
    return MalformedDescriptor("the segments do not end where the descriptor ends");
  }
  uint64_t total = 0;
  for (uint64_t i = 0; i < segments; ++i) {
    Descriptor::Segment segment;
    segment.rkey = reader.Get<uint8_t>();
    segment.address = reader.Get<uint64_t>();
    segment.bytes = reader.Get<uint64_t>();
    // Neither the end of a segment nor the sum of all may wrap around.
    const bool wraps = segment.address + segment.bytes < segment.address || total + segment.bytes < total;
    if (wraps) {
      return MalformedDescriptor("the end of a segment, or the sum of all segments, does not fit 64 bits");
    }
    if (segment.rkey >= rkeys) {
      return MalformedDescriptor(absl::StrCat("a segment names key ", segment.rkey,
                                              ", and the descriptor has ", rkeys, " keys, numbered from 0"));
    }
    total += segment.bytes;
    descriptor.segments.push_back(segment);
  }
  if (segments > 0 && total != descriptor.image_bytes) {
    return MalformedDescriptor("the segments together do not have the size of the image");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Descriptor> DecodeDescriptor(std::string_view lane, std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.GetBytes(kDescriptorMagic.size()) != kDescriptorMagic) {
    return MalformedDescriptor("the descriptor does not start with TCPD");
  }
  const uint8_t version = reader.Get<uint8_t>();
  if (reader.ok() && version != kDescriptorVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("decode the descriptor of a pull: the descriptor has version ", version,
                     ", and this receiver reads version ", kDescriptorVersion, "; upgrade the older daemon"));
  }
  Descriptor descriptor;
  descriptor.lane = std::string(reader.GetString<uint8_t>());
  const std::string_view id = reader.GetBytes(descriptor.pull_id.size());
  descriptor.image_bytes = reader.Get<uint64_t>();
  const uint8_t addresses = reader.Get<uint8_t>();
  if (reader.ok() && (addresses == 0 || addresses > kMaxAddresses)) {
    return MalformedDescriptor(absl::StrCat("the descriptor has ", addresses, " addresses, and 1 to ",
                                            kMaxAddresses, " are allowed"));
  }
  for (int i = 0; i < addresses && reader.ok(); ++i) {
    descriptor.addresses.emplace_back(reader.GetString<uint8_t>());
  }
  descriptor.source = std::string(reader.GetString<uint16_t>());
  TC_RETURN_IF_ERROR(DecodeSegments(reader, descriptor));
  if (descriptor.lane != lane) {
    return MalformedDescriptor(
        absl::StrCat("the descriptor is for the lane \"", Printable(descriptor.lane), "\", not for ", lane));
  }
  descriptor.pull_id = PullIdFromBytes(id);
  return descriptor;
}

}  // namespace tensorcast::transport::pull
