// Resolves the names that callers give. A call that takes an artifact accepts a key or an artifact id. A call
// that takes a replica id also accepts a key or an artifact id, which stands for this node's replicas of the
// artifact. Private to this folder. Thread-safe.
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

// `artifact` is a key or an artifact id. For a key, returns its binding, with its files; for an artifact id,
// returns a binding with only that id. NOT_FOUND for a key that does not exist; UNAVAILABLE if the global
// store does not confirm the key.
absl::StatusOr<v1::Key> BindingOf(const DaemonLink& link, const RequestContext& operation,
                                  std::string_view artifact);
// The artifact id of BindingOf.
absl::StatusOr<std::string> ArtifactIdOf(const DaemonLink& link, const RequestContext& operation,
                                         std::string_view artifact);

// Calls `call` with the id of each replica of this node that `name` stands for. `name` is a replica id, a key
// or an artifact id. NOT_FOUND if the node has no such replica. Stops at the first error of `call` and
// returns it.
absl::Status ForReplicasNamed(const DaemonLink& link, const RequestContext& operation, std::string_view name,
                              absl::FunctionRef<absl::Status(const std::string& replica_id)> call);

}  // namespace tensorcast::client
