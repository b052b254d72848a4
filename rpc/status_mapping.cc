#include "rpc/status_mapping.h"

#include <grpcpp/support/status.h>

#include <optional>

#include "absl/strings/cord.h"

namespace tensorcast::rpc {
namespace {

std::string Shortened(std::string_view message) {
  if (message.size() <= kMaxErrorMessageBytes) return std::string(message);
  constexpr std::string_view kCut = " [cut]";
  return std::string(message.substr(0, kMaxErrorMessageBytes - kCut.size())).append(kCut);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::optional<absl::Cord> details = status.GetPayload(kDetailsUrl);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Shortened(status.message()),
                      details.has_value() ? std::string(*details) : std::string());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = status.error_code();
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status result(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      status.error_message());
  if (!status.error_details().empty()) result.SetPayload(kDetailsUrl, absl::Cord(status.error_details()));
  return result;
}

}  // namespace tensorcast::rpc
