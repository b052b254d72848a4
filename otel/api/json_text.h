// Text as a JSON string, for code that writes JSON by hand because it must be quick.
#pragma once

#include <string>
#include <string_view>

namespace tensorcast::otel {

// Appends `text` in quotes, with everything escaped that JSON demands. Does not check that it is UTF-8.
void AppendJsonString(std::string& out, std::string_view text);

}  // namespace tensorcast::otel
