// Reads JSON event by event. Only .cc files include this header, because it includes nlohmann's headers
// (https://json.nlohmann.me). Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace tensorcast {

// A subclass overrides the events that its schema expects. All other events end the parse with an error.
// No schema here uses null, booleans, negative numbers, fractions, or numbers past 64 bits, so these values
// are errors, too.
class StrictJsonReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  const absl::Status& status() const { return status_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return Unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is not a 64-bit unsigned integer");
  }
  bool string(string_t&) override { return Unexpected("a string"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool start_object(size_t) override { return Unexpected("an object"); }
  bool start_array(size_t) override { return Unexpected("an array"); }
  bool key(string_t&) override { return Unexpected("a key"); }
  bool end_object() override { return Unexpected("the end of an object"); }
  bool end_array() override { return Unexpected("the end of an array"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override;

 protected:
  // The current place in the document, for messages: "tensor \"a\"".
  virtual std::string Where() const = 0;

  // Fail and Unexpected record the first error and return false, which stops the parser.
  bool Fail(std::string_view what);
  bool Unexpected(std::string_view what);

 private:
  absl::Status status_;
};

// Parses `text`, one whole JSON value, with the reader. INVALID_ARGUMENT if the text is not valid JSON in
// valid UTF-8, or if the reader returns an error.
absl::Status ParseStrictJson(std::string_view text, StrictJsonReader& reader);

}  // namespace tensorcast
