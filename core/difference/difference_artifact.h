// A difference as an artifact of kind kDifference: two tensors of bytes, `index` and `records`, and the ids
// of its base and its target as metadata. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"

namespace tensorcast {

// The layout of a difference's image. REQUIRES: the sum of both sizes is below 2^62.
ImageLayout DifferenceLayout(uint64_t index_bytes, uint64_t records_bytes);

// The artifact ids of the base and the target.
struct DifferenceEnds {
  std::string base;
  std::string target;
};
std::map<std::string, std::string> DifferenceMetadata(const DifferenceEnds& ends);
// INVALID_ARGUMENT for a manifest of another kind.
absl::StatusOr<DifferenceEnds> EndsOf(const Manifest& difference);

}  // namespace tensorcast
