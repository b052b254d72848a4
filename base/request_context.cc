#include "base/request_context.h"

#include <array>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/steady_time.h"

namespace tensorcast {

RequestContext RequestContext::Background(absl::Duration timeout) {
  RequestContext context;
  context.deadline = SteadyNow() + timeout;
  context.trace = TraceContext::NewRoot();
  context.request_id = NewUuid();
  return context;
}

RequestContext RequestContext::Child() const { return *this; }

absl::Status RequestContext::Check(std::string_view what) const {
  if (cancellation.IsCancelled()) {
    return absl::CancelledError(absl::StrCat(what, ": cancelled by the caller"));
  }
  if (deadline == SteadyTime::InfiniteFuture()) return absl::OkStatus();
  const absl::Duration late = SteadyNow() - deadline;
  if (late < absl::ZeroDuration()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": the deadline passed ",
                   absl::FormatDuration(absl::Trunc(late, absl::Milliseconds(1))), " ago; allow more time"));
}

std::string NewUuid() {
  std::array<uint8_t, 16> bytes;
  FillRandom(bytes.data(), bytes.size());
  bytes[6] = (bytes[6] & 0x0f) | 0x40;  // version 4
  bytes[8] = (bytes[8] & 0x3f) | 0x80;  // variant of RFC 4122
  const std::string hex =
      absl::BytesToHexString(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const std::string_view text = hex;
  return absl::StrCat(text.substr(0, 8), "-", text.substr(8, 4), "-", text.substr(12, 4), "-",
                      text.substr(16, 4), "-", text.substr(20));
}

}  // namespace tensorcast
