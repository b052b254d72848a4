// Conversions between absl::Status and grpc::Status: code, message, and payloads as the details of a
// google.rpc.Status (gRPC's trailer `grpc-status-details-bin`), where other tools can read them.
#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace tensorcast::rpc {

// Limits of ToGrpcStatus. A call with larger trailers would fail with an unrelated error, so longer messages
// are cut. Messages with payloads are cut to half of kMaxErrorMessageBytes. Payloads are left out if together
// they exceed kMaxDetailsBytes.
inline constexpr size_t kMaxErrorMessageBytes = 2048;
inline constexpr size_t kMaxDetailsBytes = 1024;

grpc::Status ToGrpcStatus(const absl::Status& status);

// A code that gRPC does not define becomes UNKNOWN. Details that are not google.rpc.Status are left out.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace tensorcast::rpc
