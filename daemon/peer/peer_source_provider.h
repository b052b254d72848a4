// Finds the sources of one materialisation, one after another: another replica of this node, then what the
// global store grants, then this node's packed file, then the files the artifact was imported from.
//
// Each grant is completed exactly once, with how it ended, and the pull it opened is closed at the source;
// both happen in the background. Used by one thread at a time, as SourceProvider says.
#pragma once

#include <memory>
#include <string>

#include "core/artifact/manifest.h"
#include "core/engine/replica.h"
#include "core/source/chunk_source.h"
#include "daemon/peer/peer_access.h"

namespace tensorcast::daemon {

struct PeerSourceRequest {
  std::shared_ptr<const Manifest> manifest;
  Location destination;
  // "local" or a transport's name: only other nodes over that lane. "disk": only this node's packed file and
  // origins. Empty: the fastest first.
  std::string lane;
};

// `access` must outlive the provider. Errors of Next, when there is nothing left: NOT_FOUND when nobody has
// the artifact, DATA_LOSS when every source was corrupt, UNAVAILABLE otherwise; the message lists what was
// tried.
std::shared_ptr<SourceProvider> MakePeerSourceProvider(const PeerAccess* access, PeerSourceRequest request);

}  // namespace tensorcast::daemon
