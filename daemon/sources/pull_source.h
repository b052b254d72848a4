// A pull over a transport, as the engine's source: each fetch asks for one range and waits for it.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "core/source/chunk_source.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// A pull of which no byte arrives for `peer_timeout` while chunks are asked for fails, and with it the
// source. `revoked` ends the pull from outside (the grant was revoked).
std::unique_ptr<ChunkSource> MakePullSource(SourceInfo info, std::unique_ptr<transport::Pull> pull,
                                            const Cancellation& revoked, absl::Duration peer_timeout);

}  // namespace tensorcast::daemon
