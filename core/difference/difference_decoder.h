// Makes chunks of the target from chunks of the base, and tells which elements changed. The difference may
// come from a peer: a damaged one gives INVALID_ARGUMENT, or wrong bytes that the target's digests reveal. It
// never takes more memory than a few chunks.
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

// One difference, opened: its index is checked and copied. Immutable; thread-safe.
class DifferenceDecoder {
 public:
  // `layout` and `image` are those of the difference; the image's pieces, in order, hold all of it and must
  // outlive the decoder. `target` is the geometry of the target, which the base must share.
  // INVALID_ARGUMENT for an index that is damaged, or that is of another geometry.
  static absl::StatusOr<DifferenceDecoder> Open(const ImageLayout& layout,
                                                std::span<const std::span<std::byte>> image,
                                                DifferenceGeometry target);

  const DifferenceGeometry& geometry() const { return *geometry_; }
  // REQUIRES, here and below: chunk < geometry().chunk_count().
  RecordMode mode(uint32_t chunk) const { return modes_[chunk]; }
  // In the difference's image; empty for kSame and kWhole.
  ByteRange record(uint32_t chunk) const;
  // The record's bytes; those that lie in several pieces are gathered in `gathered`.
  std::span<const std::byte> RecordBytes(uint32_t chunk, std::vector<std::byte>& gathered) const;

 private:
  DifferenceDecoder() = default;
  std::span<const std::byte> Bytes(ByteRange range, std::vector<std::byte>& gathered) const;

  std::shared_ptr<const DifferenceGeometry> geometry_;
  std::vector<std::span<const std::byte>> image_;
  std::vector<RecordMode> modes_;        // one a chunk
  std::vector<uint64_t> record_begins_;  // one a chunk, and the end of the last, in the image
};

// One or more differences that lead from the base to the target, in order. All must have the same geometry,
// which Rebuild checks.
using DecoderPath = std::span<const DifferenceDecoder* const>;

// kSame if every difference leaves the chunk unchanged, kWhole if one of them does not record it, else the
// mode of a difference that changes it.
RecordMode ModeOf(DecoderPath path, uint32_t chunk);

// Elements of one width that changed.
struct ChangedElements {
  uint32_t width = 1;                 // bytes of each
  std::span<const uint32_t> offsets;  // in bytes from the chunk's start, ascending
};

// Works on one chunk after another; its memory is used again. Thread-compatible: one for each thread.
class ChunkRebuilder {
 public:
  ChunkRebuilder();
  ~ChunkRebuilder();

  // Writes the target's chunk in one pass, bypassing the caches: the base's bytes with all changes of the
  // path. If `digest` is not null, it digests the written bytes. Pieces hold the chunk's bytes in order;
  // their sizes are multiples of kTensorAlignment, and may differ between base and target. The pieces of the
  // target may be those of the base, which is then overwritten; otherwise they must not overlap.
  // INVALID_ARGUMENT for a damaged record, FAILED_PRECONDITION where ModeOf says kWhole; then the target's
  // bytes are undefined.
  absl::Status Rebuild(DecoderPath path, uint32_t chunk, std::span<const std::span<std::byte>> base,
                       std::span<const std::span<std::byte>> target, DigestBuilder* digest);
  absl::Status Rebuild(DecoderPath path, uint32_t chunk, std::span<const std::byte> base,
                       std::span<std::byte> target, DigestBuilder* digest);

  // Calls `visit` with the elements that any difference of the path changes: each once, ascending, some
  // thousands in a call. Values are not given: read them from the verified target. Errors as Rebuild; `visit`
  // may have been called before an error.
  absl::Status VisitChanges(DecoderPath path, uint32_t chunk,
                            absl::FunctionRef<void(const ChangedElements&)> visit);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast
