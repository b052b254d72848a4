#include "objects/http/http_message.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tensorcast::objects {

std::string_view HttpReply::Header(std::string_view lower_case_name) const {
  const auto header = std::ranges::find(headers, lower_case_name,
                                        [](const auto& one) { return std::string_view(one.first); });
  return header == headers.end() ? std::string_view() : header->second;
}

absl::Status StatusOfReply(std::string_view subject, const HttpReply& reply, std::string_view detail) {
  if (reply.status >= 200 && reply.status < 300) return absl::OkStatus();
  std::string storage;
  // The server's words go to logs and terminals: they are made valid UTF-8, escaped, and cut.
  const std::string said =
      detail.empty() ? "" : absl::StrCat(" (", Printable(CutUtf8(ValidUtf8(detail, storage), 200)), ")");
  const std::string cause = absl::StrCat(subject, ": the server answered ", reply.status, said);
  switch (reply.status) {
    case 401:
    case 403:
      return absl::PermissionDeniedError(
          absl::StrCat(cause, "; check the credentials and their permissions"));
    case 404:
    case 410:
      return absl::NotFoundError(absl::StrCat(cause, "; check the name"));
    case 412:
    case 416:
      return absl::FailedPreconditionError(
          absl::StrCat(cause, ", since the object changed after it was opened; import the model again"));
    default:
      return absl::UnavailableError(
          absl::StrCat(cause, reply.status < 500 ? "; check the endpoint" : "; try again later"));
  }
}

}  // namespace tensorcast::objects
