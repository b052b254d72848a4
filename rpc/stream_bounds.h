// What a server accepts of a client's stream, and how it knows that it got all of it. Used by the handler
// helpers.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace tensorcast::rpc {

struct StreamBounds {
  uint64_t max_messages = uint64_t{1} << 20;
  uint64_t max_bytes = uint64_t{1} << 30;
  // Of all streams that this process receives at the time: what they hold in memory is several times that.
  uint64_t max_bytes_together = uint64_t{1} << 30;
};

// Counts one stream's messages, and frees their part of what all may have together when it is destroyed.
// Thread-compatible.
class StreamCounter {
 public:
  StreamCounter(const grpc::CallbackServerContext& call, const StreamBounds& bounds);
  ~StreamCounter();
  StreamCounter(const StreamCounter&) = delete;
  StreamCounter& operator=(const StreamCounter&) = delete;

  // RESOURCE_EXHAUSTED past a bound of the stream, UNAVAILABLE past that of all.
  absl::Status Count(uint64_t message_bytes);
  // At the end: CANCELLED when the client announced more messages than came, or was seen to cancel.
  absl::Status CheckComplete(const grpc::CallbackServerContext& call) const;

 private:
  const StreamBounds bounds_;
  std::optional<uint64_t> announced_;
  uint64_t messages_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace tensorcast::rpc
