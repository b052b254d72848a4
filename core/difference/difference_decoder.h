// Opens a difference, and finds the record of a chunk in the difference's image. The difference may come
// from a peer. A damaged difference or record gives INVALID_ARGUMENT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/byte_range.h"
#include "core/artifact/layout.h"
#include "core/difference/element_runs.h"
#include "core/difference/record_mode.h"

namespace tensorcast {

// An opened difference: its index is checked and copied. Immutable; thread-safe.
class DifferenceDecoder {
 public:
  // `layout` and `image` belong to the difference. `image` has the pieces of the whole image, in order; this
  // memory must outlive the decoder. `target` is the geometry of the target and of the base. INVALID_ARGUMENT
  // for an index that is damaged or has another geometry.
  static absl::StatusOr<DifferenceDecoder> Open(const ImageLayout& layout,
                                                std::span<const std::span<std::byte>> image,
                                                DifferenceGeometry target);

  const DifferenceGeometry& geometry() const { return *geometry_; }
  // REQUIRES, here and below: chunk < geometry().chunk_count().
  RecordMode mode(uint32_t chunk) const { return modes_[chunk]; }
  // The place of the record in the difference's image; empty for kSame and kWhole.
  ByteRange record(uint32_t chunk) const;
  // The record's bytes. If several pieces of the image have parts of the record, copies the record to
  // `gathered`; the result then refers to `gathered`.
  std::span<const std::byte> RecordBytes(uint32_t chunk, std::vector<std::byte>& gathered) const;

 private:
  DifferenceDecoder() = default;
  std::span<const std::byte> Bytes(ByteRange range, std::vector<std::byte>& gathered) const;

  std::shared_ptr<const DifferenceGeometry> geometry_;
  std::vector<std::span<const std::byte>> image_;
  std::vector<RecordMode> modes_;        // one for each chunk
  std::vector<uint64_t> record_begins_;  // offsets in the image: one for each chunk, and the end of the last
};

// One or more differences that lead from the base to the target, in order. All must have the same geometry;
// ChunkRecords checks this.
using DecoderPath = std::span<const DifferenceDecoder* const>;

// kWhole if a difference of the path has the mode kWhole for the chunk; kSame if all differences have kSame;
// else the mode of a difference that changes the chunk.
RecordMode ModeOf(DecoderPath path, uint32_t chunk);

}  // namespace tensorcast
