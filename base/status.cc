#include "base/status.h"

#include <cerrno>
#include <system_error>

namespace tensorcast {
namespace {

// Callers choose by the code whether to retry, to take another source, or to report a defect. Abseil's table
// fits all but these.
absl::StatusCode CodeForErrno(int error_number) {
  switch (error_number) {
    case EPIPE:  // the reader is gone, as with ECONNRESET
      return absl::StatusCode::kUnavailable;
    case EIO:  // the medium lost what was asked for: trying again does not help, another source does
      return absl::StatusCode::kDataLoss;
    case EDQUOT:
    case ENOBUFS:
      return absl::StatusCode::kResourceExhausted;
    case EBADF:  // a descriptor of ours that is not open: no peer or input can cause it
    case EFAULT:
      return absl::StatusCode::kInternal;
    case 0:  // a call that failed without saying why must not turn into OK
      return absl::StatusCode::kUnknown;
    default:
      return absl::ErrnoToStatusCode(error_number);
  }
}

}  // namespace

absl::Status ErrnoStatus(int error_number, std::string_view operation, std::string_view subject) {
  const std::string reason =
      error_number == 0 ? "no reason given" : std::generic_category().message(error_number);
  return absl::Status(CodeForErrno(error_number), absl::StrCat(operation, " ", subject, ": ", reason));
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  // A status cannot change its message, so the payloads are copied to a new one.
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&annotated](std::string_view type_url, const absl::Cord& payload) {
    annotated.SetPayload(type_url, payload);
  });
  return annotated;
}

}  // namespace tensorcast
