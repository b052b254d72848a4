#include "base/text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

struct SequenceRule {
  uint8_t first_min, first_max;  // lead byte
  uint8_t second_min,
      second_max;  // the byte that shuts out overlong forms, surrogates and values past U+10FFFF
  size_t length;
};

// Table 3-7 of the Unicode standard: the well-formed sequences by their lead byte.
constexpr SequenceRule kRules[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
    {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
    {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
};

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// Length of the well-formed sequence at the front of `text`, or 0.
size_t SequenceLength(std::string_view text) {
  const uint8_t first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return 1;
  for (const SequenceRule& rule : kRules) {
    if (first < rule.first_min || first > rule.first_max) continue;
    if (text.size() < rule.length) return 0;
    const uint8_t second = static_cast<uint8_t>(text[1]);
    if (second < rule.second_min || second > rule.second_max) return 0;
    for (size_t i = 2; i < rule.length; ++i) {
      if (!IsContinuation(text[i])) return 0;
    }
    return rule.length;
  }
  return 0;
}

// The bytes at the front of `text` that are well-formed.
size_t ValidPrefix(std::string_view text) {
  size_t valid = 0;
  while (valid < text.size()) {
    const size_t length = SequenceLength(text.substr(valid));
    if (length == 0) break;
    valid += length;
  }
  return valid;
}

// Length of the character at the front of `text`, or 0 where that is a control character or not UTF-8.
size_t PrintableLength(std::string_view text) {
  const uint8_t first = static_cast<uint8_t>(text[0]);
  if (first < 0x20 || first == 0x7F) return 0;
  const size_t length = SequenceLength(text);
  // U+0080 to U+009F, which UTF-8 writes as C2 80 to C2 9F.
  const bool c1 = length == 2 && first == 0xC2 && static_cast<uint8_t>(text[1]) < 0xA0;
  return c1 ? 0 : length;
}

}  // namespace

bool IsValidUtf8(std::string_view text) { return ValidPrefix(text) == text.size(); }

std::string_view ValidUtf8(std::string_view text, std::string& storage) {
  size_t valid = ValidPrefix(text);
  if (valid == text.size()) return text;
  storage = text;
  while (valid < storage.size()) {
    // One byte is replaced at a time: the next one may begin a character.
    storage[valid] = '?';
    valid += 1 + ValidPrefix(std::string_view(storage).substr(valid + 1));
  }
  return storage;
}

std::string_view CutUtf8(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  // Back to the first byte of the character that the cut would divide.
  while (max_bytes > 0 && IsContinuation(text[max_bytes])) --max_bytes;
  return text.substr(0, max_bytes);
}

bool IsPrintable(std::string_view text) {
  while (!text.empty()) {
    const size_t length = PrintableLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string Printable(std::string_view text, bool keep_lines) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const bool line_feed = keep_lines && text.front() == '\n';
    const size_t length = line_feed ? 1 : PrintableLength(text);
    if (length == 0) {
      absl::StrAppend(&shown, "\\x", absl::Hex(static_cast<uint8_t>(text.front()), absl::kZeroPad2));
      text.remove_prefix(1);
    } else {
      shown.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return shown;
}

std::string QuoteName(std::string_view name) {
  constexpr size_t kShownBytes = 200;
  const std::string_view shown = CutUtf8(name, kShownBytes);
  // Utf8SafeCHexEscape leaves bytes above 0x7f as they are, which is right only in valid UTF-8.
  const std::string escaped = IsValidUtf8(shown) ? absl::Utf8SafeCHexEscape(shown) : absl::CHexEscape(shown);
  return absl::StrCat("\"", escaped, shown.size() < name.size() ? "...\"" : "\"");
}

}  // namespace tensorcast
