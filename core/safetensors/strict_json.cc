#include "core/safetensors/strict_json.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace tensorcast {

bool StrictJsonReader::parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
  // The library's own text quotes the input at any length.
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat("the JSON text is malformed at byte ", position));
  }
  return false;
}

bool StrictJsonReader::Fail(std::string_view what) {
  // The first fault stays. The library takes the false for the end of the parse.
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(Where(), ": ", what));
  return false;
}

bool StrictJsonReader::Unexpected(std::string_view what) {
  return Fail(absl::StrCat(what, " is not allowed here"));
}

absl::Status ParseStrictJson(std::string_view text, StrictJsonReader& reader) {
  // The library takes a NUL for the end of its input, whatever follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the JSON text is malformed: byte ", nul, " is NUL"));
  }
  try {
    if (!nlohmann::json::sax_parse(text, &reader)) {
      return reader.status().ok() ? absl::InvalidArgumentError("the JSON text is malformed")
                                  : reader.status();
    }
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the JSON text is malformed: ", error.what()));
  }
  return reader.status();
}

}  // namespace tensorcast
