// Checks and quoting for names that come from outside: tensor names, metadata keys and values. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace tensorcast {

// True for well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing past
// U+10FFFF.
bool IsValidUtf8(std::string_view text);

// The name in double quotes, made safe for a message: control characters and invalid bytes escaped, long
// names cut.
std::string QuoteName(std::string_view name);

}  // namespace tensorcast
