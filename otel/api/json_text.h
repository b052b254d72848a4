// Writes a text as a JSON string, for code that writes JSON by hand for speed.
#pragma once

#include <string>
#include <string_view>

namespace tensorcast::otel {

// Appends `text` in quotes, with the escapes that JSON demands. Does not check that it is UTF-8.
void AppendJsonString(std::string& out, std::string_view text);

}  // namespace tensorcast::otel
