// Opens the source that a grant permits: attaches to a daemon of this host, or pulls from one of another over
// a lane.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/source/chunk_source.h"
#include "daemon/sources/peer_access.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

// What opening a source left behind, whatever came of it.
struct GrantOpening {
  bool pull_opened = false;             // at the source: then ClosePull is owed to it
  std::vector<SourceFailure> unopened;  // the lanes that were tried in vain
};

// Tries the grant's lane and then, unless `forced_lane` is given, the others that both nodes have: each try
// is a P2P/Connect span. The error names each lane that was tried. `revoked` ends what is opened from
// outside.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenGrantedSource(
    const RequestContext& context, const PeerAccess& access, const v1::TransportGrant& grant,
    const Manifest& manifest, std::string_view forced_lane, const Cancellation& revoked,
    GrantOpening* opening);

}  // namespace tensorcast::daemon
