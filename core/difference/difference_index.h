// The index of a difference (FORMAT.md): a mode and a record's size for each chunk. Values.
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
  std::vector<RecordMode> modes;       // one a chunk
  std::vector<uint32_t> record_bytes;  // one a chunk; 0 for kSame and kWhole
};

std::string EncodeIndex(const DifferenceIndex& index, const DifferenceGeometry& geometry);

// INVALID_ARGUMENT for anything but the index of a difference of this geometry with records of so many bytes
// in all.
absl::StatusOr<DifferenceIndex> DecodeIndex(std::string_view bytes, const DifferenceGeometry& geometry,
                                            uint64_t records_bytes);

}  // namespace tensorcast
