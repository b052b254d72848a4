#include "rpc/retry_after.h"

#include <algorithm>
#include <string>

#include "absl/random/random.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/types.pb.h"
#include "rpc/convert/convert.h"

namespace tensorcast::rpc {
namespace {

constexpr double kMaxJitter = 0.5;  // of the delay

const std::string& RetryAfterUrl() {
  static const auto& url =
      *new std::string(absl::StrCat("type.googleapis.com/", v1::RetryAfter::descriptor()->full_name()));
  return url;
}

}  // namespace

absl::Status RetryLater(std::string_view message, absl::Duration delay) {
  absl::Status status = absl::UnavailableError(message);
  v1::RetryAfter detail;
  *detail.mutable_delay() = ToProto(delay);
  status.SetPayload(RetryAfterUrl(), absl::Cord(detail.SerializeAsString()));
  return status;
}

// Clamped: a wrong or hostile server must not make its callers wait for hours.
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return std::nullopt;
  const std::optional<absl::Cord> payload = status.GetPayload(RetryAfterUrl());
  v1::RetryAfter detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return std::clamp(FromProto(detail.delay()), absl::ZeroDuration(), kMaxRetryAfter);
}

// Never earlier than asked, and later by chance: callers that were refused together return apart.
absl::Duration WaitAfter(const absl::Status& error, Backoff& backoff) {
  // The step is taken in either case, so that the backoff keeps growing through errors of both kinds.
  const absl::Duration step = backoff.Next();
  const std::optional<absl::Duration> asked = RetryAfterOf(error);
  if (!asked.has_value()) return step;
  absl::InsecureBitGen random;
  return *asked * absl::Uniform(random, 1.0, 1.0 + kMaxJitter);
}

}  // namespace tensorcast::rpc
