// What a caller's words name: a key is as good as an artifact id, and both stand for the replicas of this
// daemon's node where a replica's id is wanted. Private to this folder. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "client/daemon_link.h"

namespace tensorcast::client {

// INVALID_ARGUMENT for an empty name.
absl::Status CheckNamed(std::string_view artifact);

// What a key binds, its files among it; of an artifact that is named by its id, that id alone. NOT_FOUND for
// a key that does not exist; UNAVAILABLE where the global store does not confirm what the key means.
absl::StatusOr<v1::Key> BindingOf(const DaemonLink& link, const RequestContext& operation,
                                  std::string_view artifact);
// The artifact id of that.
absl::StatusOr<std::string> ArtifactIdOf(const DaemonLink& link, const RequestContext& operation,
                                         std::string_view artifact);

// Makes `call` with the id of each replica of this node that `name` stands for: a replica's id, or a key or
// an artifact id of which the node has replicas. NOT_FOUND where it has none; the first error ends it.
absl::Status ForReplicasNamed(const DaemonLink& link, const RequestContext& operation, std::string_view name,
                              absl::FunctionRef<absl::Status(const std::string& replica_id)> call);

}  // namespace tensorcast::client
