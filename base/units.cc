#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

// Matched without regard to case, but "kb" is decimal and "kib" binary: the unit is never ambiguous.
constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"KiB", uint64_t{1} << 10},
                                          {"MiB", uint64_t{1} << 20},
                                          {"GiB", uint64_t{1} << 30},
                                          {"TiB", uint64_t{1} << 40},
                                          {"kB", 1000},
                                          {"MB", 1000000},
                                          {"GB", 1000000000},
                                          {"TB", 1000000000000}}};

absl::Status BadSize(std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text,
      "\" is not a size; write a number and a unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), such as 64GiB"));
}

absl::Status TooLarge(std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is too large; write at most 8388607TiB"));
}

const Unit* FindUnit(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (absl::AsciiStrToLower(unit.name) == absl::AsciiStrToLower(name)) return &unit;
  }
  return nullptr;
}

// Whole numbers stay exact at any magnitude; only fractions go through floating point.
absl::StatusOr<uint64_t> Multiply(std::string_view number, uint64_t unit, std::string_view text) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  uint64_t whole = 0;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), whole);
  if (error == std::errc() && end == number.data() + number.size()) {
    if (whole > kMax / unit) return TooLarge(text);
    return whole * unit;
  }
  double fraction = 0;
  auto [fraction_end, fraction_error] =
      std::from_chars(number.data(), number.data() + number.size(), fraction);
  const bool good = fraction_error == std::errc() && fraction_end == number.data() + number.size();
  const double bytes = fraction * static_cast<double>(unit);
  // 9e18 is below 2^63, so the conversion to an integer is defined.
  if (!good || !(bytes >= 0)) return BadSize(text);
  if (bytes >= 9e18) return TooLarge(text);
  if (bytes != std::floor(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text,
        "\" is not a whole number of bytes; write a whole number of a smaller unit, such as 1331MiB"));
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(std::string_view text) {
  const std::string_view trimmed = absl::StripAsciiWhitespace(text);
  size_t digits = trimmed.find_first_not_of("0123456789.");
  if (digits == std::string_view::npos) digits = trimmed.size();
  const Unit* unit = FindUnit(absl::StripAsciiWhitespace(trimmed.substr(digits)));
  if (digits == 0 || unit == nullptr) return BadSize(text);
  return Multiply(trimmed.substr(0, digits), unit->bytes, text);
}

std::string FormatSize(uint64_t bytes) {
  for (std::string_view name : {"TiB", "GiB", "MiB", "KiB"}) {
    const uint64_t unit = FindUnit(name)->bytes;
    if (bytes != 0 && bytes % unit == 0) return absl::StrCat(bytes / unit, name);
  }
  return absl::StrCat(bytes, "B");
}

absl::StatusOr<absl::Duration> ParseDuration(std::string_view text) {
  // absl::ParseDuration has no days: they are read here, and what follows them is left to it.
  std::string_view trimmed = absl::StripAsciiWhitespace(text);
  absl::Duration days;
  if (const size_t d = trimmed.find('d'); d != std::string_view::npos) {
    double count = 0;
    auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + d, count);
    if (error == std::errc() && end == trimmed.data() + d) {
      days = count * absl::Hours(24);
      trimmed.remove_prefix(d + 1);
      if (trimmed.empty()) trimmed = "0";
    }
  }
  absl::Duration rest;
  if (!absl::ParseDuration(trimmed, &rest) || rest < absl::ZeroDuration() || days < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not a duration; write numbers with ns, us, ms, s, m, h or d: 250ms, 1h30m"));
  }
  return days + rest;
}

std::string DurationText(absl::Duration duration) {
  if (duration == absl::ZeroDuration()) return "0s";
  const int64_t days = absl::ToInt64Hours(duration) / 24;
  const bool whole_days = duration < absl::InfiniteDuration() && days * absl::Hours(24) == duration;
  return whole_days && days >= 2 ? absl::StrCat(days, "d") : absl::FormatDuration(duration);
}

}  // namespace tensorcast
