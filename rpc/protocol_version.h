// The version of the contracts in proto/, which all processes of a cluster share. Each call says its
// caller's, each answer its server's, as gRPC metadata; a process that meets another version refuses it
// before a handler runs, or before an answer is used. So that the difference is one clear error and not
// whatever comes of fields that mean something else. Pure functions.
//
// Errors are not checked: they say what they say in every version.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace grpc {
class ClientContext;
class ServerContextBase;
}  // namespace grpc

namespace tensorcast::rpc {

inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr char kProtocolKey[] = "tc-protocol";  // metadata, in both directions
inline constexpr char kProtocolText[] = "2";

// FAILED_PRECONDITION unless the caller of a call that is served here speaks our version.
absl::Status CheckCallersVersion(const grpc::ServerContextBase& call);
// The same of the server that answered. REQUIRES: its initial metadata are there.
absl::Status CheckServersVersion(const grpc::ClientContext& call);

}  // namespace tensorcast::rpc
