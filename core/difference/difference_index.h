// The index of a difference (FORMAT.md): the mode and the size of each chunk's record. Value types and pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/difference/element_runs.h"
#include "core/difference/record_mode.h"

namespace tensorcast {

struct DifferenceIndex {
  std::vector<RecordMode> modes;       // one for each chunk
  std::vector<uint32_t> record_bytes;  // one for each chunk; 0 for kSame and kWhole
};

std::string EncodeIndex(const DifferenceIndex& index, const DifferenceGeometry& geometry);

// INVALID_ARGUMENT unless the bytes are the index of a difference with this geometry, and the sizes of its
// records add up to `records_bytes`.
absl::StatusOr<DifferenceIndex> DecodeIndex(std::string_view bytes, const DifferenceGeometry& geometry,
                                            uint64_t records_bytes);

}  // namespace tensorcast
