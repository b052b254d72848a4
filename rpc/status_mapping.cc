#include "rpc/status_mapping.h"

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "rpc/convert/convert.h"

namespace tensorcast::rpc {
namespace {

std::string Shortened(std::string_view message, size_t max) {
  if (message.size() <= max) return std::string(message);
  constexpr std::string_view kCut = " [cut]";
  return std::string(message.substr(0, max - kCut.size())).append(kCut);
}

bool HasPayloads(const absl::Status& status) {
  size_t bytes = 0;
  status.ForEachPayload(
      [&bytes](std::string_view type, const absl::Cord& payload) { bytes += type.size() + payload.size(); });
  return bytes > 0 && bytes <= kMaxDetailsBytes;
}

}  // namespace

// A status travels in HTTP/2 trailers, which have a limit: a long message is cut, and payloads that are
// too large are left out.
grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (!HasPayloads(status)) return {code, Shortened(status.message(), kMaxErrorMessageBytes)};
  // It travels twice here, as gRPC's message and in the details, so each has half of the room.
  const std::string message = Shortened(status.message(), kMaxErrorMessageBytes / 2);
  v1::Status details = ToProto(status);
  details.set_message(ToProto(absl::Status(status.code(), message)).message());
  return {code, message, details.SerializeAsString()};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  v1::Status whole;
  // A server that is not ours may send other details, or none: then the code and the message are the error.
  if (!whole.ParseFromString(status.error_details())) whole.Clear();
  // gRPC's own word counts: what is in the details was written by the server.
  whole.set_code(status.error_code());
  whole.set_message(status.error_message());
  return FromProto(whole);
}

}  // namespace tensorcast::rpc
