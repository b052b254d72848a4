// Globally unique identifiers from the kernel's random generator (getrandom(2)). They are unpredictable, so
// an id may also serve as a secret (tickets, the names of pulls). Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tensorcast {

inline constexpr size_t kUuidChars = 36;

// A random UUID (version 4) in its usual text form.
std::string NewUuid();
// Whether the text is a UUID as we write them: lower-case hexadecimal digits in groups of 8-4-4-4-12.
bool IsUuid(std::string_view text);

// Fills `bytes` with `count` random bytes, at most 256.
void FillRandom(void* bytes, size_t count);
// `bytes` random bytes (at most 256) as hexadecimal digits.
std::string RandomHex(size_t bytes);

}  // namespace tensorcast
