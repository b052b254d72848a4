// A pull over one connection or several. Each fetch goes, whole, over the connection that has least to do, so
// that its bytes arrive in order and are digested on the way; with several fetches at a time the connections,
// and the threads that they live on, share the work. What breaks one connection breaks the pull.
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

// What the pulls of a transport share.
struct ReceiverOptions {
  const RegisteredMemory* memory = nullptr;
  Credit credit;
  absl::Duration connect_timeout = absl::Seconds(10);
};

// Connects to the source as Transport::Connect says. The first channel connects, and the others once it is
// welcome; each is this pull's alone. Blocks: not on a channel's thread.
absl::StatusOr<std::unique_ptr<Pull>> ConnectPull(const ReceiverOptions& options,
                                                  const RequestContext& context, Descriptor descriptor,
                                                  std::vector<std::shared_ptr<MessageChannel>> channels);

}  // namespace tensorcast::transport::pull
