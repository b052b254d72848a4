// Removes file paths from the error messages of spans: collectors should not learn where users keep models.
// Thread-safe; standard library only.
#pragma once

#include <string>
#include <string_view>

namespace tensorcast::otel::sdk {

// The text with each file path replaced by <path>. A path begins a word with /, ./, ../ or ~/, also behind
// file:// and unix:. It ends where the subject of our errors ends (": ", "; ", ", ", a bracket, a quote, the
// end), not at a blank, since a name may have blanks: it is better to hide too much than to reveal a part of
// a name. Addresses such as https://host/path stay.
std::string HidePaths(std::string_view text);

}  // namespace tensorcast::otel::sdk
