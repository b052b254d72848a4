// Whether a server answers on a channel that exists: one call of the standard health service, which every
// server of ours gives to every role. CheckHealth of rpc/channel.h connects anew instead. Thread-safe.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "base/steady_time.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tensorcast::rpc {

// OK when it serves; UNAVAILABLE or DEADLINE_EXCEEDED says that it does not answer; another error is its
// answer. Blocks until then.
absl::Status CheckHealthOn(const std::shared_ptr<grpc::Channel>& channel, SteadyTime deadline);

}  // namespace tensorcast::rpc
