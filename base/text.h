// Checks and quotes text that comes from outside: tensor names, metadata, paths, messages of peers.
// Thread-safe.
//
// This header includes only the standard library, since sources that include OpenTelemetry use it
// (otel/sdk/README.md, "Two Abseils").
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tensorcast {

// True for well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing past
// U+10FFFF.
bool IsValidUtf8(std::string_view text);

// Returns `text` if it is well-formed, else a view of `storage`, which is set to `text` with '?' for each
// byte that is not UTF-8. For protobuf messages and JSON: their parsers reject a whole message because of one
// such byte.
std::string_view ValidUtf8(std::string_view text, std::string& storage);

// The longest prefix of `text` that has at most `max_bytes` bytes and does not end within a character.
std::string_view CutUtf8(std::string_view text, size_t max_bytes);

// The name in double quotes, made safe for a message: control characters and invalid bytes are escaped, and
// long names are cut.
std::string QuoteName(std::string_view name);

// Whether the text is well-formed UTF-8 without control characters (of ASCII, and U+0080 to U+009F).
bool IsPrintable(std::string_view text);

// Makes text of another process safe for a terminal and a log: escapes control characters, and bytes that are
// not UTF-8, as \xHH. `keep_lines` keeps line feeds. A second call does not change the result.
std::string Printable(std::string_view text, bool keep_lines = false);

}  // namespace tensorcast
