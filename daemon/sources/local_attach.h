// The local lane: this daemon attaches to a replica of another daemon of the same host as any client would,
// and copies from the mapping. The lease is the connection, so a source that dies in the middle loses
// nothing. Of a replica in host memory that fills or is partial, the source has what the other daemon
// announces on that connection (core/handles), and ends with how the filling ended. Thread-safe.
#pragma once

#include <memory>

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
  // All must outlive it and the sources that it opens. A peer has `timeout` to answer.
  LocalAttacher(PeerClient* peers, PeerPools* pools, DeviceRuntime* devices, absl::Duration timeout)
      : peers_(peers), pools_(pools), devices_(devices), timeout_(timeout) {}

  // UNAVAILABLE or what the peer says when it cannot be attached to. `reading`: the span reserved for what is
  // then read; the peer links its serving to it.
  absl::StatusOr<std::unique_ptr<ChunkSource>> Attach(const RequestContext& context,
                                                      const v1::TransportGrant& grant,
                                                      const Manifest& manifest, const TraceContext& reading);

 private:
  PeerClient* const peers_;
  PeerPools* const pools_;
  DeviceRuntime* const devices_;
  const absl::Duration timeout_;
};

}  // namespace tensorcast::daemon
