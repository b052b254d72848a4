// Where on a node a replica is: a GPU, host memory, or a packed file. A value.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tensorcast {

enum class LocationKind : uint8_t { kGpu, kCpu, kDisk };

struct Location {
  LocationKind kind = LocationKind::kCpu;
  int device = 0;  // ordinal, for kGpu only

  // "gpu:N", "cpu" or "disk".
  std::string ToString() const;
  static absl::StatusOr<Location> Parse(std::string_view text);
  friend auto operator<=>(const Location&, const Location&) = default;
};
std::string_view LocationKindName(LocationKind kind);  // "gpu", "cpu", "disk"

}  // namespace tensorcast
