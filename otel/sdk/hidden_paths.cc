#include "otel/sdk/hidden_paths.h"

#include <cstddef>

namespace tensorcast::otel::sdk {
namespace {

constexpr std::string_view kHidden = "<path>";
constexpr std::string_view kQuotes = "\"'`";
constexpr std::string_view kBeforeWord = " \t\n\"'`([{<=,:;|";

bool IsAnyOf(char c, std::string_view set) { return set.find(c) != set.npos; }

// How long the beginning of a path is: 0 where none is.
size_t PathStart(std::string_view rest) {
  for (const std::string_view start : {"/", "./", "../", "~/"}) {
    if (!rest.starts_with(start) || rest.size() == start.size()) continue;
    // "a / b" and "://" name no path.
    const char next = rest[start.size()];
    if (next != '/' && next != ' ') return start.size();
  }
  return 0;
}

// A quoted path ends with its quote. Any other may have spaces in it, so it ends at a bracket, a line's end,
// or punctuation before a space: rather too much is hidden than a part of a path shown.
bool EndsHere(std::string_view text, size_t at, char quote) {
  const char c = text[at];
  if (quote != '\0') return c == quote || c == '\n';
  if (c == '\n' || IsAnyOf(c, ")]}>\"")) return true;
  if (!IsAnyOf(c, ":;,")) return false;
  return at + 1 == text.size() || text[at + 1] == ' ' || text[at + 1] == '\n';
}

}  // namespace

// One pass over the text: at the beginning of each word a path may start, and everything else is copied as it
// is.
std::string HidePaths(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    std::string_view rest = text.substr(at);
    const char before = at == 0 ? ' ' : text[at - 1];
    const bool begins_word = IsAnyOf(before, kBeforeWord);
    // A file's URI begins like a web address, which is shown.
    constexpr std::string_view kFileUri = "file://";
    size_t start = 0;
    if (begins_word && rest.starts_with(kFileUri)) {
      start = kFileUri.size();
    } else if (begins_word) {
      start = PathStart(rest);
    }
    if (start == 0) {
      shown += text[at++];
      continue;
    }
    const char quote = IsAnyOf(before, kQuotes) ? before : '\0';
    size_t end = at + start;
    while (end < text.size() && !EndsHere(text, end, quote)) ++end;
    shown += kHidden;
    at = end;
  }
  return shown;
}

}  // namespace tensorcast::otel::sdk
