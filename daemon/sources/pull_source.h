// A pull over a transport, as the engine's source: each fetch asks for one range and waits for it.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/source/chunk_source.h"
#include "daemon/telemetry/conservation.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// Told whether a GPU's memory could be readied for the pull, over a lane that reaches GPUs.
using DeviceObserver = std::function<void(const absl::Status&)>;

// A pull of which no byte arrives for `peer_timeout` while chunks are asked for fails, and with it the
// source. `revoked` ends the pull from outside (the grant was revoked). `lane` is the pull's transport, which
// must outlive the source: where it reaches GPUs, chunks go straight into their memory. `pulled` counts.
std::unique_ptr<ChunkSource> MakePullSource(SourceInfo info, transport::Transport* lane,
                                            std::unique_ptr<transport::Pull> pull,
                                            const Cancellation& revoked, absl::Duration peer_timeout,
                                            DeviceObserver on_device, std::shared_ptr<PulledBytes> pulled);

}  // namespace tensorcast::daemon
