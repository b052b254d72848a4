#include "core/safetensors/strict_json.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace tensorcast {

bool StrictJsonReader::parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
  // The library's own text quotes the input at any length.
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat("the text is not valid JSON at byte ", position));
  }
  return false;
}

bool StrictJsonReader::Fail(std::string_view what) {
  // The first fault stays. The library takes the false for the end of the parse.
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(Where(), ": ", what));
  return false;
}

bool StrictJsonReader::Unexpected(std::string_view what) { return Fail(absl::StrCat("unexpected ", what)); }

absl::Status ParseStrictJson(std::string_view text, StrictJsonReader& reader) {
  // The library takes a NUL for the end of its input, whatever follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is not valid JSON at byte ", nul, ": a NUL character"));
  }
  try {
    if (!nlohmann::json::sax_parse(text, &reader)) {
      return reader.status().ok() ? absl::InvalidArgumentError("the text is not valid JSON")
                                  : reader.status();
    }
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the text is not valid JSON: ", error.what()));
  }
  return reader.status();
}

}  // namespace tensorcast
