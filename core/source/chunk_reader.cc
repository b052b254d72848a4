#include "core/source/chunk_reader.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace tensorcast {
namespace {

// Pieces shorter than this share reads; longer ones are worth a read, or a look into the page cache, of their
// own.
constexpr uint64_t kOwnReadBytes = uint64_t{64} << 10;
// Bytes between two pieces that are cheaper read and dropped than skipped.
constexpr uint64_t kGapBytes = uint64_t{64} << 10;
// Copied out of this host's memory in steps that are still in the processor's caches when they are digested.
constexpr uint64_t kCachedStepBytes = uint64_t{256} << 10;

bool IsAligned(const ObjectPiece& piece, uint64_t alignment) {
  return piece.object_offset % alignment == 0 &&
         reinterpret_cast<uintptr_t>(piece.destination.data()) % alignment == 0;
}

void Advance(ObjectPiece& piece, uint64_t bytes) {
  piece.object_offset += bytes;
  piece.destination = piece.destination.subspan(bytes);
}

}  // namespace

absl::Status ChunkReader::Read(std::string_view what, std::span<const ObjectPiece> pieces) {
  // A copy: its pieces shrink from the front as they are read.
  std::vector<ObjectPiece> rest(pieces.begin(), pieces.end());
  for (size_t i = 0; i < rest.size(); ++i) {
    ObjectPiece& piece = rest[i];
    if (piece.zeros()) {
      std::memset(piece.destination.data(), 0, piece.destination.size());
      digest_.Update(piece.destination);
      continue;
    }
    while (!piece.destination.empty()) {
      TC_RETURN_IF_ERROR(context_.Check(what));
      TC_ASSIGN_OR_RETURN(const uint64_t done, ReadSome(std::span(rest).subspan(i)));
      Advance(piece, done);
    }
  }
  return absl::OkStatus();
}

// The ways from the cheapest on: what the last read brought along, memory of this host, a read straight to
// the destination, and a read into the window with a copy from there. Each step tells how far it came, and 0
// where it does not apply, so that the next piece may take another way.
absl::StatusOr<uint64_t> ChunkReader::ReadSome(std::span<const ObjectPiece> pieces) {
  const ObjectPiece& piece = pieces.front();
  if (const uint64_t done = TakeFromWindow(piece); done > 0) return done;
  // A short piece is read together with those that follow it, through the window.
  if (piece.destination.size() >= kOwnReadBytes) {
    if (const uint64_t done = TakeFromCache(piece); done > 0) return done;
    TC_ASSIGN_OR_RETURN(const uint64_t done, ReadStraight(piece));
    if (done > 0) return done;
  }
  TC_RETURN_IF_ERROR(FillWindow(pieces));
  return TakeFromWindow(piece);
}

uint64_t ChunkReader::TakeFromWindow(const ObjectPiece& piece) {
  if (piece.object != window_.object || piece.object_offset < window_.begin ||
      piece.object_offset >= window_.end) {
    return 0;
  }
  const uint64_t bytes = std::min<uint64_t>(piece.destination.size(), window_.end - piece.object_offset);
  const std::byte* source = window_.memory.get() + (piece.object_offset - window_.begin);
  digest_.UpdateAndCopy(piece.destination.data(), {source, bytes});
  return bytes;
}

uint64_t ChunkReader::TakeFromCache(const ObjectPiece& piece) {
  ObjectReader& object = *objects_[piece.object];
  const uint64_t bytes = std::min<uint64_t>(piece.destination.size(), read_bytes_);
  if (!object.SeemsCached(piece.object_offset, bytes)) return 0;
  uint64_t done = 0;
  while (done < bytes) {
    const HostSpan step = piece.destination.subspan(done, std::min(kCachedStepBytes, bytes - done));
    const uint64_t size = object.ReadCached(piece.object_offset + done, step);
    // SeemsCached may be wrong, and pages may go between the look and the read. The rest is read from the
    // object.
    if (size == 0) break;
    digest_.Update(step.first(size));
    done += size;
  }
  return done;
}

absl::StatusOr<uint64_t> ChunkReader::ReadStraight(const ObjectPiece& piece) {
  ObjectReader& object = *objects_[piece.object];
  const uint64_t alignment = object.alignment();
  // Direct reads take whole blocks at both ends. Other objects have an alignment of 1.
  if (!IsAligned(piece, alignment)) return uint64_t{0};
  // Whole blocks: an odd end is left to the window.
  const uint64_t bytes = std::min<uint64_t>(piece.destination.size(), read_bytes_) / alignment * alignment;
  const HostSpan destination = piece.destination.first(bytes);
  TC_RETURN_IF_ERROR(object.Read(context_, piece.object_offset, destination, bytes));
  digest_.Update(destination);
  return bytes;
}

uint64_t ChunkReader::WindowEnd(std::span<const ObjectPiece> pieces) const {
  const ObjectPiece& first = pieces.front();
  // On a block, so that the next window starts there and reads no byte again.
  const uint64_t limit = AlignDown(first.object_offset) + read_bytes_;
  uint64_t end = first.object_offset;
  for (const ObjectPiece& piece : pieces) {
    // Zeros are not in the object, and do not divide what lies around them.
    if (piece.zeros()) continue;
    const bool follows =
        piece.object == first.object && piece.object_offset >= end && piece.object_offset - end <= kGapBytes;
    if (!follows || piece.object_offset >= limit) break;
    end = std::min<uint64_t>(limit, piece.object_offset + piece.destination.size());
  }
  return end;
}

// The window serves the next pieces of the chunk as well, where they follow closely in the same object; a
// chunk of many small tensors then takes few reads.
absl::Status ChunkReader::FillWindow(std::span<const ObjectPiece> pieces) {
  const ObjectPiece& first = pieces.front();
  ObjectReader& object = *objects_[first.object];
  if (window_.memory == nullptr) window_.memory = buffers_->Take();
  window_.object = ObjectPiece::kZeros;  // until it is filled
  // From the block's beginning, and into a buffer of whole blocks: the fastest way of an object that asks for
  // that. Only the bytes up to `end` must be there.
  const uint64_t begin = AlignDown(first.object_offset);
  const uint64_t end = WindowEnd(pieces);
  const HostSpan buffer(window_.memory.get(), AlignUp(end) - begin);
  TC_RETURN_IF_ERROR(object.Read(context_, begin, buffer, end - begin));
  window_.object = first.object;
  window_.begin = begin;
  window_.end = end;
  return absl::OkStatus();
}

}  // namespace tensorcast
