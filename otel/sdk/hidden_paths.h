// File paths out of the error messages of spans: where a user keeps models is not the collector's business.
// Thread-safe; standard library only.
#pragma once

#include <string>
#include <string_view>

namespace tensorcast::otel::sdk {

// The text with each file path replaced by <path>. A path begins a word with /, ./, ../ or ~/, also behind
// file:// and unix:. It ends where our errors end their subject (": ", "; ", ", ", a bracket, a quote, the
// end), and not at a blank, since a name may have blanks: rather too much is hidden than a part of a name
// told. Addresses such as https://host/path stay.
std::string HidePaths(std::string_view text);

}  // namespace tensorcast::otel::sdk
