// What travels between the two ends of a pull, over every lane: the descriptor that leads a receiver to a
// source, and the frames of their connections. FORMAT.md is the grammar. Pure functions: decoding is total,
// looks at no byte that it was not given, allocates no more than it was given, and refuses every length
// beyond its limit.
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

// The version of the protocol. Both ends speak the same.
inline constexpr uint8_t kVersion = 4;

inline constexpr size_t kMaxTraceparentBytes = 128;
inline constexpr size_t kMaxErrorTextBytes = 256;
// Of a frame: for DATA the bytes in front of its piece, for every other type the whole.
inline constexpr size_t kMaxFrameHeadBytes = 512;
inline constexpr size_t kDataHeadBytes = 24;
// Of the piece in one DATA frame, which bounds how late a CANCEL can come.
inline constexpr uint32_t kMaxPieceBytes = uint32_t{16} << 20;
// Of one HAVE; each tells of so many chunks.
inline constexpr size_t kMaxHaveWords = 62;
inline constexpr uint32_t kHaveWordBits = 64;
// Of an image that is served while it fills: what a receiver keeps of them is 2 MiB.
inline constexpr uint64_t kMaxFillingChunks = uint64_t{1} << 24;

// The request id of an error that concerns the whole pull. Requests count from 1.
inline constexpr uint64_t kWholePull = 0;

struct Hello {
  uint8_t version = kVersion;
  uint32_t max_piece_bytes = 0;  // the longest piece that the receiver takes; 0: kMaxPieceBytes
  PullId pull_id{};
  std::string traceparent;  // may be empty
  friend bool operator==(const Hello&, const Hello&) = default;
};

struct Welcome {
  uint8_t version = kVersion;
  uint32_t max_requests = 0;       // that may be outstanding on this connection at a time
  uint64_t max_request_bytes = 0;  // of one
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = 0;  // of an image that fills; 0: everything is there
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

// The head of a DATA frame; its piece, `bytes` of the image from `offset`, follows.
struct Data {
  uint64_t request_id = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  friend bool operator==(const Data&, const Data&) = default;
};

// What is there: chunk `first` + i if bit i % 64 of words[i / 64] is set. A chunk that is
// not set is not there, or was announced before.
struct Have {
  uint32_t first = 0;           // a multiple of 64
  std::vector<uint64_t> words;  // 1 to kMaxHaveWords
  friend bool operator==(const Have&, const Have&) = default;
};

// The answer to a request for bytes that are not there.
struct NotHere {
  uint64_t id = 0;
  friend bool operator==(const NotHere&, const NotHere&) = default;
};

// Asks for HAVE on this connection.
struct Follow {
  friend bool operator==(const Follow&, const Follow&) = default;
};

using Frame = std::variant<Hello, Welcome, Error, Request, Cancel, Bye, Data, Have, NotHere, Follow>;

// Longer texts than the limits above are cut.
std::string EncodeFrame(const Frame& frame);

struct DecodedFrame {
  Frame frame;
  size_t bytes = 0;  // that it took; of DATA, those of its head
};
// The frame that `bytes` begin with; nullopt when more of them are needed to know, which is never so of
// kMaxFrameHeadBytes. INVALID_ARGUMENT for what no EncodeFrame writes.
absl::StatusOr<std::optional<DecodedFrame>> DecodeFrame(std::string_view bytes);

// FAILED_PRECONDITION, with both versions, for a HELLO of another one.
absl::Status CheckVersion(const Hello& hello);

// Whether an image that fills can be served in chunks of this size, as the manifest cuts it. INVALID_ARGUMENT
// when it has none of that size, or more than kMaxFillingChunks.
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
  std::vector<std::string> addresses;  // "host:port", the one to be tried first at the front
  std::string source;                  // the name in the source's certificate; empty: it speaks without TLS
  // Of a lane by which the receiver reads the source's memory; else empty. Both or none.
  std::vector<std::string> rkeys;
  std::vector<Segment> segments;
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};

// REQUIRES: 1 to kMaxAddresses addresses and a lane of at most 255 bytes each, at most 255 keys, and a name
// and keys of at most 65535 bytes.
std::string EncodeDescriptor(const Descriptor& descriptor);
// INVALID_ARGUMENT for bytes that are none, and for one of another lane; FAILED_PRECONDITION for those of
// another version. The segments of a decoded descriptor, if there are any, make up its image.
absl::StatusOr<Descriptor> DecodeDescriptor(std::string_view lane, std::string_view bytes);

}  // namespace tensorcast::transport::pull
