// Removes file paths from the error messages of spans: collectors should not learn where users keep models.
// Thread-safe; standard library only.
#pragma once

#include <string>
#include <string_view>

namespace tensorcast::otel::sdk {

// The text with each file path replaced by <path>. A path begins with /, ./, ../ or ~/ at the start of a
// word, or after file:// or unix:. A path ends at ": ", "; ", ", ", a bracket, a quote or the end of the
// text, but not at a blank. Addresses such as https://host/path are not replaced.
std::string HidePaths(std::string_view text);

}  // namespace tensorcast::otel::sdk
