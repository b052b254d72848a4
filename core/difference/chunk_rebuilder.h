// Makes chunks of the target from chunks of the base, and lists the changed elements. The difference may
// come from a peer. A damaged difference gives INVALID_ARGUMENT, or wrong bytes that the target's digests
// reveal. Decoding needs memory for at most a few chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/artifact/digest.h"
#include "core/difference/difference_decoder.h"

namespace tensorcast {

// Changed elements of one width.
struct ChangedElements {
  uint32_t width = 1;                 // bytes of each element
  std::span<const uint32_t> offsets;  // in bytes from the chunk's start, ascending
};

// Rebuilds one chunk after another, and reuses its memory. Thread-compatible: use one for each thread.
class ChunkRebuilder {
 public:
  ChunkRebuilder();
  ~ChunkRebuilder();

  // Writes the target's chunk, which is the base's chunk with all changes of the path, in one pass that
  // bypasses the caches. If `digest` is not null, adds the written bytes to `digest`.
  //
  // `base` and `target` are pieces that have the chunk's bytes in order. Their sizes are multiples of
  // kTensorAlignment, and may differ between base and target. Base and target may be the same memory; the
  // target then overwrites the base. Different memory must not overlap.
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
