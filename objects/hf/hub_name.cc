#include "objects/hf/hub_name.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "objects/http/url.h"

namespace tensorcast::objects {
namespace {

bool IsPlain(std::string_view part) {
  return !part.empty() && part != "." && part != ".." && IsPrintable(part) && !absl::StrContains(part, '\\');
}

// As huggingface_hub has it: the folders of its cache are named by repositories, with "--" between the parts.
bool IsNamePart(std::string_view part) {
  return IsPlain(part) && part[0] != '.' && part[0] != '-' && !absl::StrContains(part, "--") &&
         std::ranges::all_of(part,
                             [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-._", c); });
}

}  // namespace

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

absl::StatusOr<HubName> HubName::Parse(std::string_view uri) {
  const absl::Status malformed = absl::InvalidArgumentError(absl::StrCat(
      "open ", Printable(uri),
      ": the text is not the URI of a model on a hub; write hf://org/name, hf://org/name@revision or "
      "hf://org/name/path"));
  std::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, "hf://")) return malformed;
  std::vector<std::string_view> parts = absl::StrSplit(absl::StripSuffix(rest, "/"), '/');
  if (parts.size() < 2) return malformed;
  HubName name;
  const std::pair<std::string_view, std::string_view> repository =
      absl::StrSplit(parts[1], absl::MaxSplits('@', 1));
  if (!IsNamePart(parts[0]) || !IsNamePart(repository.first)) return malformed;
  name.repository = absl::StrCat(parts[0], "/", repository.first);
  // A revision may have slashes, as in "refs/pr/1". They are written %2F, so that the text was split rightly
  // above, and are decoded after it.
  if (absl::StrContains(parts[1], '@')) name.revision = DecodePercent(repository.second);
  for (const std::string_view part : absl::StrSplit(name.revision, '/')) {
    if (!IsPlain(part)) return malformed;
  }
  // The rest is the path. An empty part, "." or ".." would lead elsewhere in a cache folder or a URL.
  parts.erase(parts.begin(), parts.begin() + 2);
  if (!std::ranges::all_of(parts, IsPlain)) return malformed;
  name.path = absl::StrJoin(parts, "/");
  return name;
}

std::string HubName::Uri() const {
  return absl::StrCat("hf://", repository, "@", EncodeComponent(revision), path.empty() ? "" : "/", path);
}

bool HubName::IsPinned() const { return IsHex(revision, 40); }

}  // namespace tensorcast::objects
