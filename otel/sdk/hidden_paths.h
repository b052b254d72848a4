// Removes file paths from the error messages of spans: collectors should not learn where users keep models.
// Thread-safe; standard library only.
#pragma once

#include <string>
#include <string_view>

namespace tensorcast::otel::sdk {

// The text with each file path replaced by <path>. A path begins with /, ./, ../ or ~/ at the start of a
// word, or after file:// or unix:. It ends at ": ", "; ", ", ", a bracket, a quote or the end of the text,
// where an error's subject ends. It does not end at a blank, since a file name may have blanks, and hiding
// too much is better than showing a part of a name. Addresses such as https://host/path are not replaced.
std::string HidePaths(std::string_view text);

}  // namespace tensorcast::otel::sdk
