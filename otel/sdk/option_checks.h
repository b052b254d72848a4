// Checks the values of the section observability.otel, and keeps the first error. proto/config.proto declares
// the limits and defaults of each key.
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

// `key` is the name of the option. In Fail, Ratio and Choice it may instead be the name of the environment
// variable that gave the value.
class OptionChecks {
 public:
  // INVALID_ARGUMENT for the first value that is wrong; the message names the key.
  const absl::Status& status() const { return status_; }
  void Fail(std::string_view key, std::string_view value, std::string_view wanted);
  // Reports that one of two files is given without the other: `given` is the key of `file`, `missing` the key
  // without a file.
  void FailAlone(std::string_view missing, std::string_view given, std::string_view file);

  // An empty text stands for the key's default. If the key has no default, `out` does not change.
  void Duration(std::string_view key, const std::string& text, absl::Duration* out);
  void Milliseconds(std::string_view key, const std::string& text, std::chrono::milliseconds* out);
  // 0 stands for the key's default. If the default is 0 too, `out` does not change.
  void Count(std::string_view key, int32_t value, size_t* out);
  // The limits are those of sampling_ratio.
  void Ratio(std::string_view key, const std::string& text, double* out);
  // An empty value does not change `out`.
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
  // Adds texts of the form key=value to `out`. Stops at the first text of another form, which is an error.
  void Pairs(std::string_view key, const google::protobuf::RepeatedPtrField<std::string>& texts,
             std::vector<std::pair<std::string, std::string>>* out);
  // Checks that this process can read the file; empty: there is no file.
  void File(std::string_view key, const std::string& path);

 private:
  absl::Status status_;
};

}  // namespace tensorcast::otel::sdk
