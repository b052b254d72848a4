// The local lane: this daemon attaches to a replica of another daemon of the same host as any client would,
// and copies from the mapping. The lease is the connection, so a source that dies in the middle loses
// nothing.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/source/chunk_source.h"
#include "daemon/sources/peer_access.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

// UNAVAILABLE or what the peer says when it cannot be attached to. `reading`: the span reserved for what is
// then read; the peer links its serving to it.
absl::StatusOr<std::unique_ptr<ChunkSource>> AttachToPeer(const RequestContext& context,
                                                          const PeerAccess& access,
                                                          const v1::TransportGrant& grant,
                                                          const Manifest& manifest,
                                                          const TraceContext& reading);

}  // namespace tensorcast::daemon
