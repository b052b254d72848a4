// A pull over one or more connections. Each fetch uses one connection, the connection with the smallest load.
// Bytes that arrive in image order are digested on arrival. If an open connection breaks, the pull breaks.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "transport/pull/message_channel.h"
#include "transport/pull/pull_connection.h"
#include "transport/pull/wire.h"
#include "transport/registered_memory.h"
#include "transport/transport.h"

namespace tensorcast::transport::pull {

// The options that all pulls of a transport share.
struct ReceiverOptions {
  const RegisteredMemory* memory = nullptr;
  Credit credit;
  absl::Duration connect_timeout = absl::Seconds(10);
};

// Connects to the source, with the errors of Transport::Connect. Blocks until the source has sent WELCOME on
// the first channel; the other channels connect later. No other pull may use the channels. REQUIRES: not on a
// channel's thread; at least one channel; `options.memory` outlives the pull.
absl::StatusOr<std::unique_ptr<Pull>> ConnectPull(const ReceiverOptions& options,
                                                  const RequestContext& context, Descriptor descriptor,
                                                  std::vector<std::shared_ptr<MessageChannel>> channels);

}  // namespace tensorcast::transport::pull
