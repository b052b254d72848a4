// Sizes and durations as people write them in configuration and on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tensorcast {

// "64GiB", "1.5 MiB", "4096", "10GB", "512B": a number and a unit, binary (KiB MiB GiB TiB) or decimal (kB MB
// GB TB); none means bytes. INVALID_ARGUMENT for anything else, negative, fractions of a byte, or 2^63 and
// more.
absl::StatusOr<uint64_t> ParseSize(std::string_view text);

// The shortest exact form with a binary unit: 68719476736 -> "64GiB", 1000 -> "1000B".
std::string FormatSize(uint64_t bytes);

// "250ms", "1h30m", "1.5s", "7d", "0": absl's units and days. INVALID_ARGUMENT for anything else or negative.
absl::StatusOr<absl::Duration> ParseDuration(std::string_view text);

// The shortest exact form with units, which ParseDuration reads: "250ms", "1h30m", "0s", and "7d" for whole
// days from two on.
std::string DurationText(absl::Duration duration);

}  // namespace tensorcast
