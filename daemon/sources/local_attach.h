// The local lane: this daemon attaches to a replica of another daemon of the same host, as a client does, and
// copies from the mapping. The connection is the lease, and the mapping stays valid if the other daemon dies.
// If the replica is partial or still filling, the source has the chunks that the other daemon announces on
// that connection (core/handles). Such a source ends with the status of the ingest that fills the replica.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/source/chunk_source.h"
#include "daemon/sources/peer_client.h"
#include "daemon/sources/peer_pools.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class LocalAttacher {
 public:
  // All must outlive the attacher and the sources that it opens. A peer must answer within `timeout`.
  // Attaches only to processes of this process's user, of root, and of users in one of `groups`.
  LocalAttacher(PeerClient* peers, PeerPools* pools, DeviceRuntime* devices, absl::Duration timeout,
                std::vector<gid_t> groups = {})
      : peers_(peers), pools_(pools), devices_(devices), timeout_(timeout), groups_(std::move(groups)) {}

  // UNAVAILABLE, or the peer's own error, when this daemon cannot attach. PERMISSION_DENIED when the peer
  // names an unregistered handle socket, or the user of the socket's process is not allowed. DATA_LOSS for a
  // replica of another artifact. `reading`: the span of the reads; the peer links its own span to it.
  absl::StatusOr<std::unique_ptr<ChunkSource>> Attach(const RequestContext& context,
                                                      const v1::TransportGrant& grant,
                                                      const Manifest& manifest, const TraceContext& reading);

 private:
  PeerClient* const peers_;
  PeerPools* const pools_;
  DeviceRuntime* const devices_;
  const absl::Duration timeout_;
  const std::vector<gid_t> groups_;
};

}  // namespace tensorcast::daemon
