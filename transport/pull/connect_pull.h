// A pull over one or several connections. One fetch goes over one connection, the one with the least load at
// that time. If that connection delivers the fetch's bytes in order, it digests them on arrival. Concurrent
// fetches share the connections and their threads. If an open connection breaks, the pull breaks.
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

// Connects to the source; see Transport::Connect for the errors. Returns when the source has welcomed the
// first channel; the other channels connect later. The channels belong only to this pull. Blocks: must not be
// called on a channel's thread. REQUIRES: at least one channel; `options.memory` outlives the pull.
absl::StatusOr<std::unique_ptr<Pull>> ConnectPull(const ReceiverOptions& options,
                                                  const RequestContext& context, Descriptor descriptor,
                                                  std::vector<std::shared_ptr<MessageChannel>> channels);

}  // namespace tensorcast::transport::pull
