// Sizes and durations in the text form of the configuration and the command line. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tensorcast {

// Parses "64GiB", "1.5 MiB", "4096", "10GB", "512B": a number and a unit, in upper or lower case. Units are
// binary (KiB MiB GiB TiB) or decimal (kB MB GB TB); a number without a unit counts bytes. INVALID_ARGUMENT
// for any other text, a negative number, a fraction of a byte, and 2^63 bytes or more.
absl::StatusOr<uint64_t> ParseSize(std::string_view text);

// Formats in the shortest exact form with a binary unit: 68719476736 -> "64GiB", 1000 -> "1000B".
std::string FormatSize(uint64_t bytes);

// Parses "250ms", "1h30m", "1.5s", "7d", "0": the units of absl::ParseDuration, and days. INVALID_ARGUMENT
// for any other text, and for a negative duration.
absl::StatusOr<absl::Duration> ParseDuration(std::string_view text);

// Formats in the shortest exact form that ParseDuration reads: "250ms", "1h30m", "0s", and "7d" for two or
// more whole days.
std::string DurationText(absl::Duration duration);

}  // namespace tensorcast
