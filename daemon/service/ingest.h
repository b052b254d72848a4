// PutArtifact and ImportArtifact: the first replica of a new artifact, and its publication.
//
// An artifact exists once the global store has its manifest. When that fails, what was made here for it is
// dropped, so a put that returns an error leaves nothing behind.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/service/await.h"
#include "daemon/service/node_parts.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// `request` is the first message of the stream with the tensors of all of them.
absl::StatusOr<v1::PutArtifactResult> PutArtifact(const NodeParts& parts, const RequestContext& context,
                                                  const v1::PutArtifactRequest& request,
                                                  const OnProgress& on_progress);

// PERMISSION_DENIED for a path, or a file behind a link, outside the import roots.
absl::StatusOr<v1::PutArtifactResult> ImportArtifact(const NodeParts& parts, const RequestContext& context,
                                                     const v1::ImportArtifactRequest& request,
                                                     const OnProgress& on_progress);

// The path with links resolved lies in one of the roots (or is one). Exposed for its test.
absl::Status CheckImportPath(const std::vector<std::string>& roots, const std::string& path);

}  // namespace tensorcast::daemon
