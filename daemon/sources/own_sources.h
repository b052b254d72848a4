// Sources that this node has itself: another replica of the same artifact, or the files it was imported from.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/disk/import_roots.h"
#include "core/engine/engine.h"
#include "core/source/chunk_source.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

// Any leased replica as a source; the lease lives as long as the source. `devices` is used for GPU replicas.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenReplicaSource(std::shared_ptr<ReplicaLease> lease,
                                                               DeviceRuntime* devices);

// OK while the files of an origin on this node can be read and are what was imported: of the same sizes and
// mtimes. PERMISSION_DENIED (they cannot be opened beneath the roots), INVALID_ARGUMENT or
// FAILED_PRECONDITION when they are not; any other error tells nothing of them.
absl::Status CheckOriginFiles(const ImportRoots& roots, const v1::Origin& origin);
// Whether such an error is about the files, or only about the attempt to look at them.
bool IsAboutOriginFiles(const absl::Status& error);

// The files of an origin on this node, when they still are what was imported: errors as CheckOriginFiles, and
// DATA_LOSS when they no longer give the same layout, though they have the same sizes and mtimes.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const ImportRoots& roots,
                                                              const v1::Origin& origin,
                                                              const Manifest& manifest);

}  // namespace tensorcast::daemon
