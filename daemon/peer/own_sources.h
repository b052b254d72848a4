// Sources that this node has itself: another replica of the same artifact, or the files it was imported from.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/engine/engine.h"
#include "core/source/chunk_source.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

// Any leased replica as a source; the lease lives as long as the source. `devices` is used for GPU replicas.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenReplicaSource(std::shared_ptr<ReplicaLease> lease,
                                                               DeviceRuntime* devices);

// The files of an origin on this node, when they still are what was imported: FAILED_PRECONDITION when they
// changed or no longer give the same layout.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const v1::Origin& origin,
                                                              const Manifest& manifest);

}  // namespace tensorcast::daemon
