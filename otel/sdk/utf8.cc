#include "otel/sdk/utf8.h"

#include <algorithm>
#include <cstdint>

namespace tensorcast::otel::sdk {
namespace {

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

// The length of the character that `text` begins with; 0 when that is none.
size_t CharacterLength(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  if (!std::all_of(text.begin() + 1, text.begin() + length, IsContinuation)) return 0;
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  const auto second = static_cast<uint8_t>(text[1]);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f)) return 0;
  if ((lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) return 0;
  return length;
}

size_t ValidPrefix(std::string_view text) {
  size_t valid = 0;
  while (valid < text.size()) {
    const size_t length = CharacterLength(text.substr(valid));
    if (length == 0) break;
    valid += length;
  }
  return valid;
}

}  // namespace

std::string_view CutUtf8(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  while (max_bytes > 0 && IsContinuation(text[max_bytes])) --max_bytes;
  return text.substr(0, max_bytes);
}

std::string_view ValidUtf8(std::string_view text, std::string& storage) {
  size_t valid = ValidPrefix(text);
  if (valid == text.size()) return text;
  storage = text;
  while (valid < storage.size()) {
    storage[valid] = '?';
    valid += 1 + ValidPrefix(std::string_view(storage).substr(valid + 1));
  }
  return storage;
}

}  // namespace tensorcast::otel::sdk
