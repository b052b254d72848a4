// A difference as an artifact of kind kDifference: two tensors of bytes, `index` and `records`, and the ids of
// the two artifacts that it lies between. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"

namespace tensorcast {

// The layout of a difference's image. REQUIRES: the sum is below 2^62.
ImageLayout DifferenceLayout(uint64_t index_bytes, uint64_t records_bytes);

struct DifferenceEnds {
  std::string base;    // artifact ids
  std::string target;
};
std::map<std::string, std::string> DifferenceMetadata(const DifferenceEnds& ends);
// INVALID_ARGUMENT for a manifest of another kind.
absl::StatusOr<DifferenceEnds> EndsOf(const Manifest& difference);

}  // namespace tensorcast
