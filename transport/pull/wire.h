// Encodes and decodes the pull protocol: the descriptor, with which a receiver finds a source, and the frames
// of a connection. FORMAT.md specifies the encoding. Pure functions. Decoders are safe for any input; their
// memory is proportional to the input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/serving.h"

namespace tensorcast::transport::pull {

// The protocol version, which must be the same at source and receiver.
inline constexpr uint8_t kVersion = 4;

inline constexpr size_t kMaxTraceparentBytes = 128;
inline constexpr size_t kMaxErrorTextBytes = 256;
// Max length of a frame's head. The head of DATA is all bytes before its piece of the image. The head of any
// other frame is the whole frame.
inline constexpr size_t kMaxFrameHeadBytes = 512;
inline constexpr size_t kDataHeadBytes = 24;
// Max bytes of the piece in one DATA frame.
inline constexpr uint32_t kMaxPieceBytes = uint32_t{16} << 20;
// Max words of one HAVE frame. Each word has kHaveWordBits bits, one for each chunk.
inline constexpr size_t kMaxHaveWords = 62;
inline constexpr uint32_t kHaveWordBits = 64;
// Max chunks of an image that is served while it fills.
inline constexpr uint64_t kMaxFillingChunks = uint64_t{1} << 24;

// The request id of an error that concerns the whole pull. Ids of requests begin at 1.
inline constexpr uint64_t kWholePull = 0;

struct Hello {
  uint8_t version = kVersion;
  uint32_t max_piece_bytes = 0;  // max length of a piece that the receiver accepts; 0: kMaxPieceBytes
  PullId pull_id{};
  std::string traceparent;  // may be empty
  friend bool operator==(const Hello&, const Hello&) = default;
};

struct Welcome {
  uint8_t version = kVersion;
  uint32_t max_requests = 0;       // max outstanding requests on this connection
  uint64_t max_request_bytes = 0;  // max bytes of one request
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = 0;  // the chunk size of an image that fills; 0: the image is complete
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

struct Error {
  uint64_t request_id = kWholePull;
  absl::Status status;  // never OK
  friend bool operator==(const Error&, const Error&) = default;
};

struct Request {
  uint64_t id = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const Request&, const Request&) = default;
};

struct Cancel {
  uint64_t id = 0;
  friend bool operator==(const Cancel&, const Cancel&) = default;
};

struct Bye {
  friend bool operator==(const Bye&, const Bye&) = default;
};

// The head of a DATA frame. After the head comes the piece: `bytes` bytes of the image from `offset` on.
struct Data {
  uint64_t request_id = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  friend bool operator==(const Data&, const Data&) = default;
};

// Announces chunks: the source has chunk `first` + i if bit i % 64 of words[i / 64] is set. If the bit is
// clear, the chunk is missing, or an earlier HAVE announced the chunk.
struct Have {
  uint32_t first = 0;           // a multiple of 64
  std::vector<uint64_t> words;  // 1 to kMaxHaveWords
  friend bool operator==(const Have&, const Have&) = default;
};

// The answer to a request for bytes that the source does not have yet.
struct NotHere {
  uint64_t id = 0;
  friend bool operator==(const NotHere&, const NotHere&) = default;
};

// Asks the source to send HAVE frames on this connection.
struct Follow {
  friend bool operator==(const Follow&, const Follow&) = default;
};

using Frame = std::variant<Hello, Welcome, Error, Request, Cancel, Bye, Data, Have, NotHere, Follow>;

// Truncates a traceparent to kMaxTraceparentBytes, and an error text to kMaxErrorTextBytes. For DATA, encodes
// only the head.
std::string EncodeFrame(const Frame& frame);

struct DecodedFrame {
  Frame frame;
  size_t bytes = 0;  // the length of the frame; for DATA, the length of its head
};
// Decodes the frame at the start of `bytes`. nullopt: `bytes` ends within the head; kMaxFrameHeadBytes
// bytes always suffice. INVALID_ARGUMENT for bytes that EncodeFrame never writes.
absl::StatusOr<std::optional<DecodedFrame>> DecodeFrame(std::string_view bytes);

// FAILED_PRECONDITION, with both versions in the message, if HELLO has another version than kVersion.
absl::Status CheckVersion(const Hello& hello);

// OK if an image can be served while it fills. INVALID_ARGUMENT if `chunk_bytes` is not a valid chunk size
// for `image_bytes`, or if the image does not have 1 to kMaxFillingChunks chunks.
absl::Status CheckFilling(uint64_t image_bytes, uint64_t chunk_bytes);

inline constexpr size_t kMaxAddresses = 16;
inline constexpr size_t kMaxDescriptorBytes = size_t{64} << 10;

struct Descriptor {
  // Image bytes in the source's memory, readable with rkeys[rkey].
  struct Segment {
    uint8_t rkey = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    friend bool operator==(const Segment&, const Segment&) = default;
  };

  std::string lane;
  PullId pull_id{};
  uint64_t image_bytes = 0;
  std::vector<std::string> addresses;  // "host:port"; a receiver tries them in this order
  std::string source;                  // the name in the source's certificate; empty: no TLS
  // For lanes on which the receiver reads the source's memory: the memory's remote keys, and the segments of
  // the image in order. Empty on other lanes.
  std::vector<std::string> rkeys;
  std::vector<Segment> segments;
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};

// REQUIRES: 1 to kMaxAddresses addresses; at most 255 keys; each address and the lane at most 255 bytes long;
// `source` and each key at most 65535 bytes long.
std::string EncodeDescriptor(const Descriptor& descriptor);
// INVALID_ARGUMENT for malformed bytes or a descriptor of another lane; FAILED_PRECONDITION for a descriptor
// of another version. The segments of the result, if any, add up to image_bytes.
absl::StatusOr<Descriptor> DecodeDescriptor(std::string_view lane, std::string_view bytes);

}  // namespace tensorcast::transport::pull
