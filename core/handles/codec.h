// Encodes and decodes the frames of the handle socket (FORMAT.md). Pure functions; thread-safe.
//
// Decoding is safe for any bytes. It allocates at most a small multiple of the input's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/handles/handles.h"
#include "core/handles/ring_memory.h"

namespace tensorcast {

inline constexpr uint16_t kHandleProtocolVersion = 6;  // both ends must have the same version

inline constexpr size_t kFramePrefixBytes = 4;
inline constexpr size_t kMaxClientFrameBytes = 4096;              // client to server, without the prefix
inline constexpr size_t kMaxServerFrameBytes = size_t{16} << 20;  // server to client; fits 500,000 extents
inline constexpr size_t kMaxErrorMessageBytes = 2048;             // longer messages are cut
inline constexpr size_t kMaxFrameDescriptors = 253;               // the kernel's limit for one message
inline constexpr uint32_t kMaxOfferedFiles = 1024;                // of one OFFER_FILES
inline constexpr size_t kMaxHandedMemories = 64;                  // of one put
inline constexpr size_t kMaxHandedParts = size_t{1} << 16;        // of one put
inline constexpr size_t kMaxPartsPerFrame = 170;                  // as many as fit kMaxClientFrameBytes

struct HelloFrame {
  uint16_t version = kHandleProtocolVersion;
};
struct HelloAckFrame {
  uint16_t version = kHandleProtocolVersion;
};
struct ClaimFrame {
  std::string ticket;
};
// Comes with the first kMaxFrameDescriptors descriptors; DESCRIPTORS frames bring further descriptors. Only
// the last of these frames may have fewer than kMaxFrameDescriptors descriptors.
struct HandlesFrame {
  ReplicaHandles handles;
};
struct DescriptorsFrame {};
// Offers a memfd of `bytes` bytes, or the device memory of `ipc`.
struct OfferFrame {
  uint64_t bytes = 0;
  std::optional<IpcHandle> ipc;
};
// Offers files that are open for reading. Their descriptors, one for each file, are sent as for HANDLES.
struct OfferFilesFrame {
  uint32_t count = 0;  // 1 to kMaxOfferedFiles
};
struct OfferedFrame {
  std::string token;
};
struct ClosedFrame {};
struct ErrorFrame {
  absl::Status status;  // never OK
};

// Asks for HAVE frames on this connection. REQUIRES: the connection holds a claim on a replica in host
// memory.
struct FollowFrame {};
// Verified chunks of the image. Bit i % 64 of words[i / 64] is chunk first_chunk + i.
struct HaveFrame {
  uint32_t first_chunk = 0;  // a multiple of 64
  std::vector<uint64_t> words;
};
// The last announcement. OK if all chunks were announced, else the reason why no more chunks will come.
struct HaveEndFrame {
  absl::Status status;
};
// Tells the server that the client is about to open the claimed device memory.
struct OpeningFrame {};
// Asks for a ring, to stream the image of a put.
struct StreamFrame {
  uint64_t image_bytes = 0;
};
// Sent before STREAM: names memory that has parts of the image. If `replica_id` is set, the memory is that
// replica of the daemon. If it is empty, the memory is a memfd of `bytes` bytes, which comes with the frame.
struct HandOverFrame {
  uint64_t bytes = 0;
  std::string pool_id;
  std::string replica_id;
};
// Parts of the image that are in the memory of the last HAND_OVER.
struct PartsFrame {
  std::vector<HandedPart> parts;
};
// The ring's memory comes with the frame. `token` names the ring in PutArtifact.
struct RingFrame {
  std::string token;
  RingShape shape;
};

using Frame = std::variant<HelloFrame, HelloAckFrame, ClaimFrame, HandlesFrame, OfferFrame, OfferedFrame,
                           ClosedFrame, ErrorFrame, DescriptorsFrame, FollowFrame, HaveFrame, HaveEndFrame,
                           OpeningFrame, StreamFrame, RingFrame, OfferFilesFrame, HandOverFrame, PartsFrame>;

// "HELLO", "CLAIM" and so on, for messages.
const char* FrameName(const Frame& frame);

// Returns the frame with its length prefix. INVALID_ARGUMENT if a string is longer than 65535 bytes or the
// frame is longer than kMaxServerFrameBytes.
absl::StatusOr<std::string> EncodeFrame(const Frame& frame);

// The number of bytes that follow the prefix. INVALID_ARGUMENT for 0 and for more than `max_bytes`.
absl::StatusOr<size_t> DecodeFramePrefix(std::span<const std::byte, kFramePrefixBytes> prefix,
                                         size_t max_bytes);

// Decodes the bytes that follow a prefix. INVALID_ARGUMENT, with the byte offset, for bytes that EncodeFrame
// does not write. But HELLO and HELLO_ACK of a later version may end with further bytes.
absl::StatusOr<Frame> DecodeFrame(std::span<const std::byte> frame);

}  // namespace tensorcast
