#include "rpc/stream_bounds.h"

#include <grpcpp/server_context.h>

#include <atomic>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rpc/call_contexts.h"

namespace tensorcast::rpc {
namespace {

std::atomic<uint64_t> bytes_together{0};

}  // namespace

StreamCounter::StreamCounter(const grpc::CallbackServerContext& call, const StreamBounds& bounds)
    : bounds_(bounds) {
  auto it = call.client_metadata().find(kStreamMessagesKey);
  uint64_t count = 0;
  if (it != call.client_metadata().end() &&
      absl::SimpleAtoi(std::string_view(it->second.data(), it->second.size()), &count)) {
    announced_ = count;
  }
}

StreamCounter::~StreamCounter() { bytes_together.fetch_sub(bytes_); }

absl::Status StreamCounter::Count(uint64_t message_bytes) {
  ++messages_;
  bytes_ += message_bytes;
  const uint64_t together = bytes_together.fetch_add(message_bytes) + message_bytes;
  if (messages_ > bounds_.max_messages || bytes_ > bounds_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the stream passed a limit: ", messages_,
                                                     " messages (at most ", bounds_.max_messages, "), ",
                                                     bytes_, " bytes (at most ", bounds_.max_bytes, ")"));
  }
  if (together > bounds_.max_bytes_together) {
    // Who is refused takes no room from the others.
    bytes_together.fetch_sub(message_bytes);
    bytes_ -= message_bytes;
    return absl::UnavailableError(absl::StrCat(
        "requests that are streamed here at this moment have ", together, " bytes together (at most ",
        bounds_.max_bytes_together, "); try again when some have ended"));
  }
  return absl::OkStatus();
}

absl::Status StreamCounter::CheckComplete(const grpc::CallbackServerContext& call) const {
  if (announced_.has_value() && messages_ < *announced_) {
    return absl::CancelledError(
        absl::StrCat("the client's stream broke off after ", messages_, " of ", *announced_, " messages"));
  }
  if (call.IsCancelled()) return absl::CancelledError("the client cancelled its stream");
  return absl::OkStatus();
}

}  // namespace tensorcast::rpc
