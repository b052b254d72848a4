// PutArtifact and ImportArtifact: the first replica of a new artifact, and its publication.
//
// An artifact exists once the global store has its manifest. When that fails, what was made here for it is
// dropped, so a put that returns an error leaves nothing behind.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/service/await.h"
#include "daemon/service/node_parts.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// `request` is the first message of the stream with the tensors of all of them.
absl::StatusOr<v1::PutArtifactResult> PutArtifact(const NodeParts& parts, const RequestContext& context,
                                                  const v1::PutArtifactRequest& request,
                                                  const OnProgress& on_progress);

// What cannot be opened beneath the import roots is PERMISSION_DENIED in the same words for all reasons
// (core/disk/import_roots.h).
absl::StatusOr<v1::PutArtifactResult> ImportArtifact(const NodeParts& parts, const RequestContext& context,
                                                     const v1::ImportArtifactRequest& request,
                                                     const OnProgress& on_progress);

}  // namespace tensorcast::daemon
