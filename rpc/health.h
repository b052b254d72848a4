// Checks whether a server answers on an existing channel: calls gRPC's standard health service, which every
// rpc::Server offers to every role. CheckHealth of rpc/channel.h makes a new connection. Thread-safe.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "base/steady_time.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tensorcast::rpc {

// OK: the server serves. UNAVAILABLE or DEADLINE_EXCEEDED: the server does not answer. Any other error is the
// server's answer. Blocks until the answer or the deadline.
absl::Status CheckHealthOn(const std::shared_ptr<grpc::Channel>& channel, SteadyTime deadline);

}  // namespace tensorcast::rpc
