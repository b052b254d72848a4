#include "otel/sdk/option_checks.h"

#include <unistd.h>

#include <type_traits>

#include "absl/log/check.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/units.h"
#include "proto/config.pb.h"
#include "proto/config_key.pb.h"

namespace tensorcast::otel::sdk {
namespace {

// What proto/config.proto declares of a key of this section. Limits and defaults stand there alone.
const v1::ConfigKey& Declared(std::string_view key) {
  const auto* field = v1::OtelConfig::descriptor()->FindFieldByName(std::string(key));
  CHECK(field != nullptr) << key;
  return field->options().GetExtension(v1::key);
}

template <class T>
T NumberOf(const std::string& declared) {
  T number{};
  if constexpr (std::is_floating_point_v<T>) {
    CHECK(absl::SimpleAtod(declared, &number)) << declared;
  } else {
    CHECK(absl::SimpleAtoi(declared, &number)) << declared;
  }
  return number;
}

absl::Duration DurationOf(const std::string& declared) {
  const absl::StatusOr<absl::Duration> duration = ParseDuration(declared);
  CHECK_OK(duration.status());
  return *duration;
}

}  // namespace

void OptionChecks::Fail(std::string_view key, std::string_view value, std::string_view wanted) {
  // Update keeps the first error.
  status_.Update(absl::InvalidArgumentError(
      absl::StrCat("observability.otel.", key, ": \"", value, "\" is not ", wanted)));
}

void OptionChecks::FailAlone(std::string_view missing, std::string_view given, std::string_view file) {
  status_.Update(
      absl::InvalidArgumentError(absl::StrCat("observability.otel.", missing, ": no file is given, and ",
                                              given, " is \"", file, "\"; give both or neither")));
}

void OptionChecks::Duration(std::string_view key, const std::string& text, absl::Duration* out) {
  const v1::ConfigKey& declared = Declared(key);
  const std::string& value = text.empty() ? declared.default_value() : text;
  if (value.empty()) return;
  const std::string min = declared.min().empty() ? "1ms" : declared.min();
  const absl::StatusOr<absl::Duration> parsed = ParseDuration(value);
  if (!parsed.ok() || *parsed < DurationOf(min) || *parsed > DurationOf(declared.max())) {
    return Fail(key, value, absl::StrCat("a duration from ", min, " to ", declared.max()));
  }
  *out = *parsed;
}

void OptionChecks::Milliseconds(std::string_view key, const std::string& text,
                                std::chrono::milliseconds* out) {
  absl::Duration parsed = absl::FromChrono(*out);
  Duration(key, text, &parsed);
  *out = absl::ToChronoMilliseconds(parsed);
}

void OptionChecks::Count(std::string_view key, int32_t value, size_t* out) {
  const v1::ConfigKey& declared = Declared(key);
  if (value < NumberOf<int32_t>(declared.min()) || value > NumberOf<int32_t>(declared.max())) {
    return Fail(key, absl::StrCat(value),
                absl::StrCat("a number from ", declared.min(), " to ", declared.max()));
  }
  if (value == 0) value = NumberOf<int32_t>(declared.default_value());
  if (value > 0) *out = static_cast<size_t>(value);
}

void OptionChecks::Ratio(std::string_view key, const std::string& text, double* out) {
  const v1::ConfigKey& declared = Declared("sampling_ratio");
  double ratio = 0;
  if (!absl::SimpleAtod(text, &ratio) || !(ratio >= NumberOf<double>(declared.min())) ||
      !(ratio <= NumberOf<double>(declared.max()))) {
    return Fail(key, text, absl::StrCat("a number between ", declared.min(), " and ", declared.max()));
  }
  *out = ratio;
}

void OptionChecks::Pairs(std::string_view key, const google::protobuf::RepeatedPtrField<std::string>& texts,
                         std::vector<std::pair<std::string, std::string>>* out) {
  for (const std::string& text : texts) {
    std::pair<std::string, std::string> pair = absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (pair.first.empty() || !absl::StrContains(text, '=')) return Fail(key, text, "key=value");
    out->push_back(std::move(pair));
  }
}

void OptionChecks::File(std::string_view key, const std::string& path) {
  if (!path.empty() && access(path.c_str(), R_OK) != 0) Fail(key, path, "a file that can be read");
}

}  // namespace tensorcast::otel::sdk
