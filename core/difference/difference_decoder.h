// Makes chunks of the target from chunks of the base, and tells which elements changed. The difference may
// come from a peer. A damaged difference gives INVALID_ARGUMENT, or wrong bytes that the target's digests
// reveal. Decoding never takes more memory than a few chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_range.h"
#include "core/artifact/digest.h"
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
// Rebuild checks this.
using DecoderPath = std::span<const DifferenceDecoder* const>;

// kSame if no difference of the path changes the chunk, kWhole if a difference has no record of the chunk,
// else the mode of a difference that changes the chunk.
RecordMode ModeOf(DecoderPath path, uint32_t chunk);

// Changed elements of one width.
struct ChangedElements {
  uint32_t width = 1;                 // bytes of each
  std::span<const uint32_t> offsets;  // in bytes from the chunk's start, ascending
};

// Rebuilds one chunk after another, and reuses its memory. Thread-compatible: use one for each thread.
class ChunkRebuilder {
 public:
  ChunkRebuilder();
  ~ChunkRebuilder();

  // Writes the target's chunk in one pass, bypassing the caches: the base's bytes with all changes of the
  // path. If `digest` is not null, it digests the written bytes.
  //
  // `base` and `target` are pieces that have the chunk's bytes in order. Their sizes are multiples of
  // kTensorAlignment, and may differ between base and target. Base and target may be the same memory, which
  // is then overwritten; otherwise they must not overlap.
  //
  // INVALID_ARGUMENT for a damaged record, FAILED_PRECONDITION if ModeOf is kWhole. After an error the
  // target's bytes are undefined.
  absl::Status Rebuild(DecoderPath path, uint32_t chunk, std::span<const std::span<std::byte>> base,
                       std::span<const std::span<std::byte>> target, DigestBuilder* digest);
  absl::Status Rebuild(DecoderPath path, uint32_t chunk, std::span<const std::byte> base,
                       std::span<std::byte> target, DigestBuilder* digest);

  // Calls `visit` with the elements that a difference of the path changes, ascending, some thousands in a
  // call. No element occurs twice. Read the values from the verified target. Errors as Rebuild; `visit` may
  // have been called before an error.
  absl::Status VisitChanges(DecoderPath path, uint32_t chunk,
                            absl::FunctionRef<void(const ChangedElements&)> visit);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast
