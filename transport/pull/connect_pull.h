// A pull over one or several connections. Each whole fetch goes over the connection with the least load, so
// that its bytes arrive in order and are digested on arrival. Several fetches at the same time share the
// connections and their threads. If one connection breaks, the pull breaks.
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

// Connects to the source, as Transport::Connect describes. The first channel connects, and the others after
// the source has welcomed it. The channels belong only to this pull. Blocks: must not be called on a
// channel's thread.
absl::StatusOr<std::unique_ptr<Pull>> ConnectPull(const ReceiverOptions& options,
                                                  const RequestContext& context, Descriptor descriptor,
                                                  std::vector<std::shared_ptr<MessageChannel>> channels);

}  // namespace tensorcast::transport::pull
