#include "base/ids.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

constexpr std::string_view kUuidShape = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
static_assert(kUuidShape.size() == kUuidChars);

}  // namespace

std::string NewUuid() {
  std::array<char, 16> bytes;
  FillRandom(bytes.data(), bytes.size());
  bytes[6] = static_cast<char>((bytes[6] & 0x0f) | 0x40);  // version 4
  bytes[8] = static_cast<char>((bytes[8] & 0x3f) | 0x80);  // variant of RFC 4122
  const std::string hex = absl::BytesToHexString({bytes.data(), bytes.size()});
  const std::string_view text = hex;
  return absl::StrCat(text.substr(0, 8), "-", text.substr(8, 4), "-", text.substr(12, 4), "-",
                      text.substr(16, 4), "-", text.substr(20));
}

bool IsUuid(std::string_view text) {
  if (text.size() != kUuidChars) return false;
  for (size_t i = 0; i < kUuidChars; ++i) {
    const bool digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (kUuidShape[i] == '-' ? text[i] != '-' : !digit) return false;
  }
  return true;
}

void FillRandom(void* bytes, size_t count) {
  // Up to 256 bytes arrive whole and uninterrupted once the kernel's pool is seeded; before that a signal may
  // cut in.
  ssize_t got;
  do {
    got = getrandom(bytes, count, 0);
  } while (got < 0 && errno == EINTR);
  PCHECK(got == static_cast<ssize_t>(count)) << "getrandom: no unique ids can be made on this kernel";
}

std::string RandomHex(size_t bytes) {
  std::string random(bytes, '\0');
  FillRandom(random.data(), random.size());
  return absl::BytesToHexString(random);
}

}  // namespace tensorcast
