// The version of the contracts in proto/, which all processes of a cluster share. Each call carries its
// caller's version and each answer its server's, as gRPC metadata. A server refuses another version before a
// handler runs; a client refuses another version before it uses an answer. Pure functions.
//
// A client accepts errors of every version, because errors have the same meaning in every version.
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

// FAILED_PRECONDITION unless the caller of a served call has this process's version.
absl::Status CheckCallersVersion(const grpc::ServerContextBase& call);
// The same check for the server that answered. REQUIRES: its initial metadata have arrived.
absl::Status CheckServersVersion(const grpc::ClientContext& call);

}  // namespace tensorcast::rpc
