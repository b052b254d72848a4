// Reads the pieces of one chunk, in order, and digests them. Reads each part in the cheapest possible way:
// from this host's page cache, directly to its destination, or through a buffer with an aligned superset of
// the bytes.
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
  // `read_bytes`, a multiple of kBlockBytes, is the max size of one read and the size of a buffer. Context,
  // objects and buffers must outlive the reader.
  ChunkReader(const RequestContext& context, std::span<const std::shared_ptr<ObjectReader>> objects,
              BounceBuffers* buffers, uint64_t read_bytes, bool with_blake3)
      : context_(context),
        objects_(objects),
        buffers_(buffers),
        read_bytes_(read_bytes),
        digest_(with_blake3) {}
  ~ChunkReader() { buffers_->Give(std::move(window_.memory)); }

  // Reads the pieces to their destinations. `what` names the work in errors of the context.
  absl::Status Read(std::string_view what, std::span<const ObjectPiece> pieces);
  // The digests of all pieces that were read.
  ChunkDigests digests() const { return digest_.FinishChunk(); }

 private:
  // The bytes [begin, end) of an object that are in the buffer.
  struct Window {
    AlignedBuffer memory;
    uint32_t object = ObjectPiece::kZeros;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  // Reads at least one byte at the front of pieces[0], and returns the number of bytes.
  absl::StatusOr<uint64_t> ReadSome(std::span<const ObjectPiece> pieces);
  // Each of the next three functions reads bytes at the piece's front and returns their number; 0 if the
  // function cannot read the piece.
  uint64_t TakeFromWindow(const ObjectPiece& piece);
  uint64_t TakeFromCache(const ObjectPiece& piece);
  absl::StatusOr<uint64_t> ReadStraight(const ObjectPiece& piece);
  // Fills the window from the front of pieces[0] on, and includes pieces that follow closely in the object.
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
