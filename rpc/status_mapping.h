// Conversions between absl::Status and grpc::Status: code, message, and payloads as the details of a
// google.rpc.Status (gRPC's trailer `grpc-status-details-bin`), where other tools read them too.
#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace tensorcast::rpc {

// Trailing metadata has a small limit, and a call with larger trailers fails with an error that hides the
// real one. Longer messages are therefore cut; with payloads, which repeat the message, to half of that.
// Payloads that are larger together are left out.
inline constexpr size_t kMaxErrorMessageBytes = 2048;
inline constexpr size_t kMaxDetailsBytes = 1024;

grpc::Status ToGrpcStatus(const absl::Status& status);

// A code that gRPC does not define becomes UNKNOWN. Details that are not google.rpc.Status are left out.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace tensorcast::rpc
