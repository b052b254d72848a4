// absl::Status <-> grpc::Status: code, message, and one optional opaque detail.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace tensorcast::rpc {

// The payload of an absl::Status that travels as grpc's error_details; others stay behind.
inline constexpr char kDetailsUrl[] = "tensorcast/details";

// Messages longer than this are cut: trailing metadata has a small limit, and a call whose trailers do not
// fit fails with an error that hides the real one.
inline constexpr size_t kMaxErrorMessageBytes = 2048;

grpc::Status ToGrpcStatus(const absl::Status& status);

// A code that gRPC does not define becomes UNKNOWN.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace tensorcast::rpc
