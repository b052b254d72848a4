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

// Whether the text is well-formed UTF-8 without control characters: neither ASCII's nor U+0080 to U+009F,
// with which a terminal command may begin as well.
bool IsPrintable(std::string_view text);

// The text as a terminal and a log can show it, for text that another process wrote: control characters and
// bytes that are not UTF-8 are escaped as \xHH. Line feeds stay where `keep_lines` says so. Other text is
// returned unchanged, so that escaping it twice changes nothing.
std::string Printable(std::string_view text, bool keep_lines = false);

}  // namespace tensorcast
