// A pull over a transport as a source of the engine: each fetch requests one range and waits for it.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/source/chunk_source.h"
#include "daemon/telemetry/conservation.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// Called with the result of preparing GPU memory for the pull, if the lane reaches GPUs.
using DeviceObserver = std::function<void(const absl::Status&)>;

// The pull and the source fail when no byte arrives for `peer_timeout` while chunks are requested. `revoked`
// ends the pull when the grant is revoked. `lane` is the pull's transport and must outlive the source. If the
// lane reaches GPUs, chunks for a GPU go directly into its memory. `pulled` counts the bytes.
std::unique_ptr<ChunkSource> MakePullSource(SourceInfo info, transport::Transport* lane,
                                            std::unique_ptr<transport::Pull> pull,
                                            const Cancellation& revoked, absl::Duration peer_timeout,
                                            DeviceObserver on_device, std::shared_ptr<PulledBytes> pulled);

}  // namespace tensorcast::daemon
