#include "rpc/retry.h"

#include "absl/strings/cord.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {
namespace {

constexpr char kWithoutRetry[] = "without retry";

}  // namespace

absl::Status WithoutRetry(absl::Status status) {
  if (!status.ok()) status.SetPayload(kDetailsUrl, absl::Cord(kWithoutRetry));
  return status;
}

bool IsWorthRetrying(const absl::Status& status) {
  return absl::IsUnavailable(status) && status.GetPayload(kDetailsUrl) != absl::Cord(kWithoutRetry);
}

}  // namespace tensorcast::rpc
