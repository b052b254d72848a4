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
};

// Counts one stream's messages. Thread-compatible.
class StreamCounter {
 public:
  StreamCounter(const grpc::CallbackServerContext& call, const StreamBounds& bounds);

  // RESOURCE_EXHAUSTED past a bound.
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
