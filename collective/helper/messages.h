// The messages between a daemon and its helper process (FORMAT.md): values and their bytes. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_range.h"
#include "core/device/device_runtime.h"

namespace tensorcast::helper {

inline constexpr size_t kMaxMessageBytes = size_t{64} << 10;
inline constexpr uint32_t kMaxRanks = 64;
inline constexpr uint32_t kMaxRanges = 2048;
inline constexpr uint32_t kVersion = 2;
// What goes to the other processes of a communicator ahead of a broadcast.
inline constexpr size_t kHeaderBytes = 4096;
inline constexpr uint32_t kMaxHeaderRanges = 255;

struct OpenRequest {
  IpcHandle memory;
};

struct JoinRequest {
  struct Rank {
    uint32_t rank = 0;
    std::string device_uuid;
  };
  std::string id;  // empty: all ranks are here
  uint32_t world_size = 0;
  std::vector<Rank> ranks;
};

struct BroadcastRequest {
  uint32_t communicator = 0;
  uint32_t root = 0;
  std::vector<uint32_t> memories;  // of each rank that was joined with
  std::vector<ByteRange> ranges;
};

struct CloseRequest {
  uint32_t memory = 0;
};

struct MakeIdRequest {};

// The next broadcast of a root in another process.
struct ReceiveRequest {
  uint32_t communicator = 0;
  uint32_t root = 0;
  std::vector<uint32_t> memories;
};

struct LeaveRequest {
  uint32_t communicator = 0;
};

using Request = std::variant<OpenRequest, JoinRequest, BroadcastRequest, CloseRequest, MakeIdRequest,
                             ReceiveRequest, LeaveRequest>;

struct Hello {
  uint32_t version = 0;
  std::string library;  // its version
};

// What is done: the number of what was opened or joined, else 0; the id that was made; the ranges that came.
using Reply = std::variant<uint32_t, Hello, std::string, std::vector<ByteRange>>;

// REQUIRES: within the limits above.
std::string EncodeRequest(const Request& request);
std::string EncodeReply(const absl::StatusOr<Reply>& reply);

// INVALID_ARGUMENT for anything but what the encoders make.
absl::StatusOr<Request> DecodeRequest(std::string_view bytes);
// What the helper answered, be it an error; INTERNAL when it is not an answer at all.
absl::StatusOr<Reply> DecodeReply(std::string_view bytes);

// kHeaderBytes. REQUIRES: at most kMaxHeaderRanges.
std::string EncodeHeader(const std::vector<ByteRange>& ranges);
// INVALID_ARGUMENT for anything but what the encoder makes. The ranges may be any.
absl::StatusOr<std::vector<ByteRange>> DecodeHeader(std::string_view bytes);

}  // namespace tensorcast::helper
