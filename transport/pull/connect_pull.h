// A pull over one connection or several. Each fetch goes, whole, over the connection that has least to do, so
// that its bytes arrive in order and are digested on the way; with several fetches at a time the connections,
// and the loops that they live on, share the work. What breaks one connection breaks the pull.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "transport/registered_memory.h"
#include "transport/tcp/io_loop.h"
#include "transport/pull/pull_connection.h"
#include "transport/tcp/session_cache.h"
#include "transport/pull/wire.h"
#include "transport/transport.h"

namespace tensorcast::transport::tcp {

// What the pulls of a transport share. Outlives them.
struct ReceiverContext {
  std::vector<IoLoop*> loops;  // at least one
  const RegisteredMemory* memory = nullptr;
  PullStream::Options stream;
  SessionCache* sessions = nullptr;
  int connections = 1;  // of one pull, at most
  absl::Duration connect_timeout = absl::Seconds(10);
};

// Connects to the source as Transport::Connect says. Blocks, also while names are looked up: not on a loop's
// thread.
absl::StatusOr<std::unique_ptr<Pull>> ConnectPull(const ReceiverContext& receiver,
                                                  const RequestContext& context, Descriptor descriptor);

}  // namespace tensorcast::transport::tcp
