// Opens the source that a grant permits: attaches to a daemon of this host, or pulls from one of another over
// a lane.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/source/chunk_source.h"
#include "daemon/peer/peer_access.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

// Tries the grant's lane and then, unless `forced_lane` is given, the others that both nodes have. The error
// names each lane that was tried. `revoked` ends what is opened from outside. Sets *pull_opened, whatever the
// result, once a pull was opened at the source: then ClosePull is owed to it.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenGrantedSource(
    const RequestContext& context, const PeerAccess& access, const v1::TransportGrant& grant,
    const Manifest& manifest, std::string_view forced_lane, const Cancellation& revoked, bool* pull_opened);

}  // namespace tensorcast::daemon
