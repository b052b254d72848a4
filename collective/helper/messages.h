// The messages between a daemon and its helper process, and their encoding (FORMAT.md). Values and functions
// without state; thread-safe.
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
// The size of the header that the root sends to the other processes of a communicator before each broadcast.
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
  std::string id;  // empty: all ranks are in this helper, which makes the id
  uint32_t world_size = 0;
  std::vector<Rank> ranks;
};

struct BroadcastRequest {
  uint32_t communicator = 0;
  uint32_t root = 0;
  std::vector<uint32_t> memories;  // one for each rank of the helper, in the order of JoinRequest::ranks
  std::vector<ByteRange> ranges;
};

struct CloseRequest {
  uint32_t memory = 0;
};

struct MakeIdRequest {};

// Takes part in the next broadcast of a root in another process. The root's header has the ranges.
struct ReceiveRequest {
  uint32_t communicator = 0;
  uint32_t root = 0;
  std::vector<uint32_t> memories;  // as in BroadcastRequest
};

struct LeaveRequest {
  uint32_t communicator = 0;
};

using Request = std::variant<OpenRequest, JoinRequest, BroadcastRequest, CloseRequest, MakeIdRequest,
                             ReceiveRequest, LeaveRequest>;

struct Hello {
  uint32_t version = 0;
  std::string library;  // the version of the collective library
};

// The result of a request. uint32_t: the number of the opened memory or the joined communicator; 0 for
// requests without a result. string: the id for MakeIdRequest. Ranges: the ranges for ReceiveRequest. Hello
// is the helper's first message and answers no request.
using Reply = std::variant<uint32_t, Hello, std::string, std::vector<ByteRange>>;

// REQUIRES: within the limits above.
std::string EncodeRequest(const Request& request);
std::string EncodeReply(const absl::StatusOr<Reply>& reply);

// INVALID_ARGUMENT for bytes that EncodeRequest does not make.
absl::StatusOr<Request> DecodeRequest(std::string_view bytes);
// Returns the reply, or the error that the helper sent. INTERNAL for bytes that are not a reply.
absl::StatusOr<Reply> DecodeReply(std::string_view bytes);

// Returns kHeaderBytes bytes. REQUIRES: at most kMaxHeaderRanges.
std::string EncodeHeader(const std::vector<ByteRange>& ranges);
// INVALID_ARGUMENT for another size, too many ranges, or a reserved field that is not 0. Does not check the
// ranges themselves, nor the bytes after them.
absl::StatusOr<std::vector<ByteRange>> DecodeHeader(std::string_view bytes);

}  // namespace tensorcast::helper
