// Resolves the names of artifacts and replicas. An artifact's name is a key or an artifact id. A replica's
// name is a replica id, a key or an artifact id; a key or an artifact id stands for this node's replicas of
// the artifact. Private to this folder. Thread-safe.
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

// `artifact` is a key or an artifact id. Returns the binding of a key, with its files. For an artifact id,
// returns a binding with only the id. NOT_FOUND if the key does not exist. UNAVAILABLE if the global store
// does not confirm the key.
absl::StatusOr<v1::Key> BindingOf(const DaemonLink& link, const RequestContext& operation,
                                  std::string_view artifact);
// The artifact id in the result of BindingOf.
absl::StatusOr<std::string> ArtifactIdOf(const DaemonLink& link, const RequestContext& operation,
                                         std::string_view artifact);

// Calls `call` with the id of each replica of this node that `name` stands for. Stops at the first error of
// `call` and returns this error. NOT_FOUND if the node has no such replica.
absl::Status ForReplicasNamed(const DaemonLink& link, const RequestContext& operation, std::string_view name,
                              absl::FunctionRef<absl::Status(const std::string& replica_id)> call);

}  // namespace tensorcast::client
