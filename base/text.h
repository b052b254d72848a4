// Checks and quoting for text that comes from outside: tensor names, metadata, paths, messages of peers. The
// only reader of UTF-8. Thread-safe.
//
// It includes the standard library alone, since sources that include OpenTelemetry use it
// (otel/sdk/README.md, "Two Abseils").
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tensorcast {

// True for well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing past
// U+10FFFF.
bool IsValidUtf8(std::string_view text);

// `text` itself when it is well-formed, else `storage`, with each byte that is not UTF-8 replaced by '?'. For
// text that travels in protobuf messages and JSON, which refuse all of a message for one such byte.
std::string_view ValidUtf8(std::string_view text, std::string& storage);

// At most `max_bytes` of `text`, not cut within a character.
std::string_view CutUtf8(std::string_view text, size_t max_bytes);

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
