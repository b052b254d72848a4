#include "base/labels.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast {
namespace {

constexpr size_t kMaxLabels = 16;
// As long as a DNS label: names and values of other systems fit.
constexpr size_t kMaxBytes = 63;

// `more` are the characters that may stand inside, beside letters and digits.
bool IsWord(std::string_view text, std::string_view more) {
  if (text.empty() || text.size() > kMaxBytes) return false;
  if (!absl::ascii_isalnum(static_cast<unsigned char>(text.front()))) return false;
  if (!absl::ascii_isalnum(static_cast<unsigned char>(text.back()))) return false;
  return std::ranges::all_of(text, [more](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || more.find(c) != std::string_view::npos;
  });
}

absl::Status CheckWord(std::string_view what, std::string_view text, std::string_view more) {
  if (IsWord(text, more)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      QuoteName(text), " is not a ", what, " of a label: use 1 to ", kMaxBytes,
      " characters (letters, digits and \"", more, "\"), the first and the last a letter or a digit"));
}

absl::Status CheckLabel(std::string_view name, std::string_view value) {
  TC_RETURN_IF_ERROR(CheckWord("name", name, "-_./"));
  return CheckWord("value", value, "-_.");
}

}  // namespace

absl::Status CheckLabels(const Labels& labels) {
  if (labels.size() > kMaxLabels) {
    return absl::InvalidArgumentError(absl::StrCat("read labels: ", labels.size(),
                                                   " labels were given, and a node has at most ", kMaxLabels,
                                                   "; give fewer"));
  }
  for (const auto& [name, value] : labels) TC_RETURN_IF_ERROR(CheckLabel(name, value));
  return absl::OkStatus();
}

absl::StatusOr<Labels> ParseLabels(const std::vector<std::string>& pairs) {
  Labels labels;
  for (const std::string_view pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          QuoteName(pair), " is not a label: a name, \"=\" and a value are expected, as in zone=a"));
    }
    const std::string name(pair.substr(0, equals));
    if (!labels.emplace(name, pair.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the label ", QuoteName(name), " is given twice; give each name once"));
    }
  }
  TC_RETURN_IF_ERROR(CheckLabels(labels));
  return labels;
}

bool HasLabels(const Labels& labels, const Labels& wanted) {
  return std::ranges::all_of(wanted, [&labels](const auto& label) {
    const auto found = labels.find(label.first);
    return found != labels.end() && found->second == label.second;
  });
}

std::string LabelsText(const Labels& labels) { return absl::StrJoin(labels, ", ", absl::PairFormatter("=")); }

}  // namespace tensorcast
