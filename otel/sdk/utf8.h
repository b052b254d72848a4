// Text as OTLP wants it. Standard library only.
#pragma once

#include <string>
#include <string_view>

namespace tensorcast::otel::sdk {

// At most `max_bytes` of `text`, not cut within a character.
std::string_view CutUtf8(std::string_view text, size_t max_bytes);

// `text` itself when it is valid UTF-8 (RFC 3629), else `storage`, with each byte that is not replaced by
// '?'.
std::string_view ValidUtf8(std::string_view text, std::string& storage);

}  // namespace tensorcast::otel::sdk
