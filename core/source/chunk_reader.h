// Reads the pieces of one chunk, in order, and digests them. For each part it uses the cheapest way that is
// possible: from this host's memory (the page cache), straight to its place, or through a buffer that holds
// an aligned superset.
//
// Internal to this folder. Used for one fetch; thread-compatible.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/artifact/digest.h"
#include "core/source/bounce_buffers.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

class ChunkReader {
 public:
  // `read_bytes`, whole blocks, bounds one read; a buffer holds as many. All must outlive the reader.
  ChunkReader(const RequestContext& context, std::span<const std::shared_ptr<ObjectReader>> objects,
              BounceBuffers* buffers, uint64_t read_bytes, bool with_blake3)
      : context_(context),
        objects_(objects),
        buffers_(buffers),
        read_bytes_(read_bytes),
        digest_(with_blake3) {}
  ~ChunkReader() { buffers_->Give(std::move(window_.memory)); }

  // `what` names the work in errors of the context.
  absl::Status Read(std::string_view what, std::span<const ObjectPiece> pieces);
  ChunkDigests digests() const { return digest_.FinishChunk(); }

 private:
  // A stretch of an object that is in the buffer.
  struct Window {
    AlignedBuffer memory;
    uint32_t object = ObjectPiece::kZeros;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  // Reads the front of pieces[0], at least one byte, and returns how much.
  absl::StatusOr<uint64_t> ReadSome(std::span<const ObjectPiece> pieces);
  // Each of these reads a part of the piece's front and returns its size; 0 when another way is needed.
  uint64_t TakeFromWindow(const ObjectPiece& piece);
  uint64_t TakeFromCache(const ObjectPiece& piece);
  absl::StatusOr<uint64_t> ReadStraight(const ObjectPiece& piece);
  // Fills the window from the front of pieces[0] on, including pieces that follow it closely in the object.
  absl::Status FillWindow(std::span<const ObjectPiece> pieces);
  uint64_t WindowEnd(std::span<const ObjectPiece> pieces) const;

  const RequestContext& context_;
  const std::span<const std::shared_ptr<ObjectReader>> objects_;
  BounceBuffers* const buffers_;
  const uint64_t read_bytes_;
  Window window_;
  DigestBuilder digest_;
};

}  // namespace tensorcast
