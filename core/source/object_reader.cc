#include "core/source/object_reader.h"

#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {

bool IsHiddenPath(std::string_view path) { return path.starts_with('.') || absl::StrContains(path, "/."); }

absl::StatusOr<std::string> ReadBytes(const RequestContext& context, ObjectReader& object, uint64_t offset,
                                      uint64_t bytes) {
  TC_RETURN_IF_ERROR(CheckObjectRange(object.identity(), offset, bytes));  // before memory is allocated
  std::string data(bytes, '\0');
  TC_RETURN_IF_ERROR(object.Read(context, offset, std::as_writable_bytes(std::span(data)), bytes));
  return data;
}

absl::Status CheckObjectRange(const ObjectIdentity& object, uint64_t offset, uint64_t bytes) {
  if (offset <= object.bytes && bytes <= object.bytes - offset) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("read ", object.uri, ": the object has ", object.bytes,
                                            " bytes, and ", bytes, " bytes at offset ", offset,
                                            " were asked for; ask for a range inside the object"));
}

}  // namespace tensorcast
