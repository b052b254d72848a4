#include "base/config_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tensorcast {

void Findings::Add(std::string_view key, std::string_view what) {
  std::string line = absl::StrCat(key, ": ", what);
  // Rooms share keys, and each of them reports what it reads.
  if (std::ranges::find(lines_, line) == lines_.end()) lines_.push_back(std::move(line));
}

void Findings::Add(std::string_view key, const absl::Status& status) {
  if (!status.ok()) Add(key, status.message());
}

absl::Status Findings::ToStatus() const {
  return lines_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
}

}  // namespace tensorcast
