// Checks the values of the section observability.otel, and gathers the first error. Limits and defaults of a
// key are those that proto/config.proto declares: code that sets the message by hand (the client library,
// tests) has the limits of a file.
//
// Each check changes its output only if the value is right. Thread-compatible.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace tensorcast::otel::sdk {

// `key` names the option, and in Fail, Ratio and Choice also the variable that the value is from.
class OptionChecks {
 public:
  // INVALID_ARGUMENT for the first value that is wrong; it names the key.
  const absl::Status& status() const { return status_; }
  void Fail(std::string_view key, std::string_view value, std::string_view wanted);
  // One of two files that are of use only together is not given.
  void FailAlone(std::string_view missing, std::string_view given, std::string_view file);

  // An empty text leaves `out` as it was where the key has no default.
  void Duration(std::string_view key, const std::string& text, absl::Duration* out);
  void Milliseconds(std::string_view key, const std::string& text, std::chrono::milliseconds* out);
  // 0 is the default; where that is 0, too, `out` stays as it was.
  void Count(std::string_view key, int32_t value, size_t* out);
  // The limits are those of sampling_ratio.
  void Ratio(std::string_view key, const std::string& text, double* out);
  // An empty value leaves `out` as it was.
  template <class T>
  void Choice(std::string_view key, const std::string& value,
              std::initializer_list<std::pair<std::string_view, T>> choices, T* out) {
    if (value.empty()) return;
    std::string names;
    for (const auto& [name, choice] : choices) {
      if (name == value) {
        *out = choice;
        return;
      }
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    }
    Fail(key, value, absl::StrCat("one of ", names));
  }
  // Texts of the form key=value, which are added to `out` up to the first that has another form.
  void Pairs(std::string_view key, const google::protobuf::RepeatedPtrField<std::string>& texts,
             std::vector<std::pair<std::string, std::string>>* out);
  // A file that this process can read; empty: none.
  void File(std::string_view key, const std::string& path);

 private:
  absl::Status status_;
};

}  // namespace tensorcast::otel::sdk
