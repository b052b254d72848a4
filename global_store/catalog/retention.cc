#include "global_store/catalog/retention.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast::global_store {

absl::Status CheckKeep(uint64_t keep) {
  if (keep >= 1 && keep <= kMaxKeep) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("keep ", keep, " versions: a key keeps 1 to ", kMaxKeep,
                   " versions, including the current version; give a number in this range"));
}

absl::StatusOr<Retention> Retention::Parse(uint64_t keep, const std::vector<std::string>& pairs) {
  TC_RETURN_IF_ERROR(CheckKeep(keep));
  Retention retention{.keep = static_cast<uint32_t>(keep)};
  for (const std::string_view pair : pairs) {
    const size_t equals = pair.rfind('=');  // a key may hold one, a number does not
    uint64_t versions = 0;
    if (equals == std::string_view::npos || equals == 0 ||
        !absl::SimpleAtoi(pair.substr(equals + 1), &versions)) {
      return absl::InvalidArgumentError(absl::StrCat("parse keep rule ", QuoteName(pair),
                                                     ": the rule is not PREFIX=VERSIONS; write, for example, "
                                                     "llama/=3"));
    }
    TC_RETURN_IF_ERROR(Annotate(CheckKeep(versions), absl::StrCat("parse keep rule ", QuoteName(pair))));
    const bool fresh =
        retention.by_prefix.emplace(pair.substr(0, equals), static_cast<uint32_t>(versions)).second;
    if (!fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat("parse keep rule ", QuoteName(pair),
                       ": another rule has the same prefix; give one rule for each prefix"));
    }
  }
  return retention;
}

// The longest prefix that fits decides; without one the rule for all keys.
uint32_t Retention::KeepOf(std::string_view key) const {
  size_t longest = 0;
  uint32_t versions = keep;
  for (const auto& [prefix, of_prefix] : by_prefix) {
    if (prefix.size() > longest && key.starts_with(prefix)) {
      longest = prefix.size();
      versions = of_prefix;
    }
  }
  return versions;
}

}  // namespace tensorcast::global_store
