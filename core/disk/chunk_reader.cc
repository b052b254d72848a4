#include "core/disk/chunk_reader.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "core/disk/packed_format.h"

namespace tensorcast {
namespace {

// Pieces shorter than this share reads; longer ones are worth a read, or a look into the page cache, of their
// own.
constexpr uint64_t kOwnReadBytes = uint64_t{64} << 10;
// Bytes between two pieces that are cheaper read and dropped than skipped.
constexpr uint64_t kGapBytes = uint64_t{64} << 10;
// Copied out of the page cache in steps that are still in the processor's caches when they are digested.
constexpr uint64_t kCachedStepBytes = uint64_t{256} << 10;

bool IsAligned(const ObjectPiece& piece) {
  return piece.file_offset % kPackedAlignment == 0 &&
         reinterpret_cast<uintptr_t>(piece.destination.data()) % kPackedAlignment == 0;
}

void Advance(ObjectPiece& piece, uint64_t bytes) {
  piece.file_offset += bytes;
  piece.destination = piece.destination.subspan(bytes);
}

}  // namespace

absl::Status ChunkReader::Read(const RequestContext& context, std::string_view what,
                               std::span<const ObjectPiece> pieces) {
  std::vector<ObjectPiece> rest(pieces.begin(), pieces.end());
  for (size_t i = 0; i < rest.size(); ++i) {
    ObjectPiece& piece = rest[i];
    if (piece.zeros()) {
      std::memset(piece.destination.data(), 0, piece.destination.size());
      digest_.Update(piece.destination);
      continue;
    }
    while (!piece.destination.empty()) {
      TC_RETURN_IF_ERROR(context.Check(what));
      TC_ASSIGN_OR_RETURN(const uint64_t done, ReadSome(std::span(rest).subspan(i)));
      Advance(piece, done);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ChunkReader::ReadSome(std::span<const ObjectPiece> pieces) {
  const ObjectPiece& piece = pieces.front();
  if (const uint64_t done = TakeFromWindow(piece); done > 0) return done;
  if (piece.destination.size() >= kOwnReadBytes) {
    if (const uint64_t done = TakeFromPageCache(piece); done > 0) return done;
    TC_ASSIGN_OR_RETURN(const uint64_t done, ReadStraight(piece));
    if (done > 0) return done;
  }
  TC_RETURN_IF_ERROR(FillWindow(pieces));
  return TakeFromWindow(piece);
}

uint64_t ChunkReader::TakeFromWindow(const ObjectPiece& piece) {
  if (piece.file != window_.file || piece.file_offset < window_.begin || piece.file_offset >= window_.end) {
    return 0;
  }
  const uint64_t bytes = std::min<uint64_t>(piece.destination.size(), window_.end - piece.file_offset);
  const std::byte* source = window_.memory.get() + (piece.file_offset - window_.begin);
  digest_.UpdateAndCopy(piece.destination.data(), {source, bytes});
  return bytes;
}

uint64_t ChunkReader::TakeFromPageCache(const ObjectPiece& piece) {
  FileReader& file = *files_[piece.file];
  const uint64_t bytes = std::min<uint64_t>(piece.destination.size(), read_bytes_);
  if (!file.SeemsCached(piece.file_offset, bytes)) return 0;
  uint64_t done = 0;
  while (done < bytes) {
    const HostSpan step = piece.destination.subspan(done, std::min(kCachedStepBytes, bytes - done));
    const uint64_t size = file.ReadCached(piece.file_offset + done, step);
    if (size == 0) break;
    digest_.Update(step.first(size));
    done += size;
  }
  return done;
}

absl::StatusOr<uint64_t> ChunkReader::ReadStraight(const ObjectPiece& piece) {
  FileReader& file = *files_[piece.file];
  uint64_t bytes = std::min<uint64_t>(piece.destination.size(), read_bytes_);
  if (file.direct()) {
    if (!IsAligned(piece)) return uint64_t{0};
    bytes = AlignDown(bytes);
  }
  const HostSpan destination = piece.destination.first(bytes);
  TC_RETURN_IF_ERROR(file.Read(piece.file_offset, destination, bytes));
  digest_.Update(destination);
  return bytes;
}

uint64_t ChunkReader::WindowEnd(std::span<const ObjectPiece> pieces) const {
  const ObjectPiece& first = pieces.front();
  // On a block, so that the next window starts there and reads no byte again.
  const uint64_t limit = AlignDown(first.file_offset) + read_bytes_;
  uint64_t end = first.file_offset;
  for (const ObjectPiece& piece : pieces) {
    if (piece.zeros()) continue;
    const bool follows =
        piece.file == first.file && piece.file_offset >= end && piece.file_offset - end <= kGapBytes;
    if (!follows || piece.file_offset >= limit) break;
    end = std::min<uint64_t>(limit, piece.file_offset + piece.destination.size());
  }
  return end;
}

absl::Status ChunkReader::FillWindow(std::span<const ObjectPiece> pieces) {
  const ObjectPiece& first = pieces.front();
  FileReader& file = *files_[first.file];
  if (window_.memory == nullptr) window_.memory = buffers_->Take();
  window_.file = ObjectPiece::kZeros;  // until it is filled
  const uint64_t begin = AlignDown(first.file_offset);
  const uint64_t end = WindowEnd(pieces);
  const HostSpan buffer(window_.memory.get(), AlignUp(end) - begin);
  TC_RETURN_IF_ERROR(file.Read(begin, buffer, end - begin));
  window_.file = first.file;
  window_.begin = begin;
  window_.end = end;
  return absl::OkStatus();
}

}  // namespace tensorcast
