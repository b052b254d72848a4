// Files beside the tensors of a put: opened, stored and bound with them. Private to this folder.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/daemon_link.h"
#include "core/safetensors/beside.h"
#include "otel/api/span.h"
#include "proto/daemon.pb.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// What this process opens of files that are not in a folder with the tensors. Blocks until the file system
// answers, or the deadline of `context`.
absl::StatusOr<FilesBeside> OpenFilesAt(const RequestContext& context, const std::vector<std::string>& paths);

// Stores the files and binds them with the tensors that `put` stored under the key. After these: files that
// no key binds may go when room is needed.
absl::Status BindFiles(otel::Span& span, DaemonLink& link, const RequestContext& operation,
                       const FilesBeside& files, PutOptions options, v1::PutArtifactResult& put);

}  // namespace tensorcast::client
