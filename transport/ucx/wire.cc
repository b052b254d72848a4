#include "transport/ucx/wire.h"

#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/text.h"

namespace tensorcast::transport::wire {
namespace {

constexpr std::string_view kHelloMagic = "TCP2";
constexpr uint8_t kLastStatusCode = static_cast<uint8_t>(absl::StatusCode::kUnauthenticated);

enum class Type : uint8_t { kHello = 1, kWelcome = 2, kError = 3, kRequest = 4, kBye = 5, kData = 6 };

ByteWriter Start(Type type) { return std::move(ByteWriter().Put(static_cast<uint8_t>(type))); }

std::string Encode(const Hello& hello) {
  const std::string_view trace = std::string_view(hello.traceparent).substr(0, kMaxTraceparentBytes);
  return Start(Type::kHello)
      .Put(kHelloMagic)
      .Put(hello.version)
      .Put(hello.max_piece_bytes)
      .Put(AsBytes(hello.pull_id))
      .PutString<uint16_t>(trace)
      .Take();
}

std::string Encode(const Welcome& welcome) {
  return Start(Type::kWelcome)
      .Put(welcome.version)
      .Put(welcome.max_requests)
      .Put(welcome.max_request_bytes)
      .Put(welcome.image_bytes)
      .Take();
}

std::string Encode(const Error& error) {
  const std::string_view text = error.status.message().substr(0, kMaxErrorTextBytes);
  // A text that is cut says most of it; a frame that is too long would end the pull.
  return Start(Type::kError)
      .Put(error.request_id)
      .Put(static_cast<uint8_t>(error.status.code()))
      .PutString<uint16_t>(text)
      .Take();
}

std::string Encode(const Request& request) {
  return Start(Type::kRequest).Put(request.id).Put(request.offset).Put(request.bytes).Take();
}

std::string Encode(const Bye&) { return Start(Type::kBye).Take(); }

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed ", what, " message from the peer"));
}

// A reader that runs out gives zeros and says so at the end (AtEnd), so fields are read first and judged
// once.
absl::StatusOr<Control> DecodeHello(ByteReader reader) {
  Hello hello;
  const bool magic = reader.GetBytes(kHelloMagic.size()) == kHelloMagic;
  hello.version = reader.Get<uint8_t>();
  hello.max_piece_bytes = reader.Get<uint32_t>();
  const std::string_view id = reader.GetBytes(hello.pull_id.size());
  const std::string_view trace = reader.GetString<uint16_t>();
  if (!magic || !reader.AtEnd() || trace.size() > kMaxTraceparentBytes) return Malformed("HELLO");
  hello.pull_id = PullIdFromBytes(id);
  hello.traceparent = std::string(trace);
  return hello;
}

absl::StatusOr<Control> DecodeWelcome(ByteReader reader) {
  Welcome welcome;
  welcome.version = reader.Get<uint8_t>();
  welcome.max_requests = reader.Get<uint32_t>();
  welcome.max_request_bytes = reader.Get<uint64_t>();
  welcome.image_bytes = reader.Get<uint64_t>();
  if (!reader.AtEnd() || welcome.max_requests == 0 || welcome.max_request_bytes == 0) {
    return Malformed("WELCOME");
  }
  return welcome;
}

absl::StatusOr<Control> DecodeError(ByteReader reader) {
  Error error;
  error.request_id = reader.Get<uint64_t>();
  const uint8_t code = reader.Get<uint8_t>();
  const std::string_view text = reader.GetString<uint16_t>();
  if (!reader.AtEnd() || code == 0 || code > kLastStatusCode || text.size() > kMaxErrorTextBytes) {
    return Malformed("ERROR");
  }
  error.status = absl::Status(static_cast<absl::StatusCode>(code), Printable(text));
  return error;
}

absl::StatusOr<Control> DecodeRequest(ByteReader reader) {
  Request request;
  request.id = reader.Get<uint64_t>();
  request.offset = reader.Get<uint64_t>();
  request.bytes = reader.Get<uint64_t>();
  if (!reader.AtEnd() || request.id == kWholePull || request.bytes == 0) return Malformed("REQUEST");
  return request;
}

}  // namespace

std::string EncodeControl(const Control& message) {
  return std::visit([](const auto& m) { return Encode(m); }, message);
}

absl::StatusOr<Control> DecodeControl(std::string_view bytes) {
  ByteReader reader(bytes);
  switch (static_cast<Type>(reader.Get<uint8_t>())) {
    case Type::kHello:
      return DecodeHello(reader);
    case Type::kWelcome:
      return DecodeWelcome(reader);
    case Type::kError:
      return DecodeError(reader);
    case Type::kRequest:
      return DecodeRequest(reader);
    case Type::kBye:
      if (!reader.AtEnd()) return Malformed("BYE");
      return Bye{};
    default:
      return Malformed("unknown");
  }
}

std::string EncodeDataHeader(const DataHeader& header) {
  return Start(Type::kData).Put(header.request_id).Put(header.offset).Take();
}

absl::StatusOr<DataHeader> DecodeDataHeader(std::string_view bytes) {
  ByteReader reader(bytes);
  DataHeader header;
  const bool is_data = reader.Get<uint8_t>() == static_cast<uint8_t>(Type::kData);
  header.request_id = reader.Get<uint64_t>();
  header.offset = reader.Get<uint64_t>();
  if (!is_data || !reader.AtEnd() || header.request_id == kWholePull) return Malformed("DATA");
  return header;
}

absl::Status CheckVersion(const Hello& hello) {
  if (hello.version == kVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the receiver speaks version ", hello.version,
                                                    " of the pull protocol, this source ", kVersion,
                                                    ": upgrade the older daemon"));
}

}  // namespace tensorcast::transport::wire
