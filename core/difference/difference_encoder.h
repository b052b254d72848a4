// Makes a difference while a target is put: each chunk is compared with the base's, and becomes a record of
// the mode that takes the fewest bytes. The shared part is thread-safe; each thread has a ChunkEncoder.
//
//   DifferenceEncoder encoder(GeometryOf(layout));
//   in each thread:  ChunkEncoder chunks(encoder);
//                    for its chunks:  chunks.Encode(chunk, base, target);
//   at the end:      encoder.Finish();
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/byte_range.h"
#include "core/artifact/layout.h"
#include "core/difference/element_runs.h"
#include "core/difference/record_mode.h"

namespace tensorcast {

// What was encoded. Its image is that of an artifact of kind kDifference.
struct EncodedDifference {
  std::string index;
  std::vector<std::string> records;  // one a chunk; empty for same and whole
  uint64_t records_bytes = 0;        // of all records
  ImageLayout layout;                // DifferenceLayout(index.size(), records_bytes)

  // Writes the image's bytes of `range` to `destination`. Thread-safe. REQUIRES: the range lies in the image.
  void CopyImage(ByteRange range, std::byte* destination) const;
};

class DifferenceEncoder {
 public:
  explicit DifferenceEncoder(DifferenceGeometry geometry);

  const DifferenceGeometry& geometry() const { return geometry_; }
  // Whether the difference is already larger than half the image, so that none will be made: the chunks that
  // are left need not be compared.
  bool TooLarge() const;

  // Stores the record of a chunk. Thread-safe for different chunks. REQUIRES: chunk < chunk_count(), and it
  // is stored only once.
  void Store(uint32_t chunk, RecordMode mode, std::string record);

  // After all chunks were stored; once. std::nullopt when the difference, its whole chunks included, is
  // larger than half the image. REQUIRES: no other call runs; each chunk was stored, unless TooLarge().
  std::optional<EncodedDifference> Finish();

 private:
  struct StoredRecord {
    RecordMode mode = RecordMode::kWhole;
    bool stored = false;
    std::string bytes;
  };

  const DifferenceGeometry geometry_;
  std::vector<StoredRecord> records_;
  std::atomic<uint64_t> bytes_ = 0;  // what a receiver has to bring: records and whole chunks
};

// Encodes one chunk after another; its memory is used again. Thread-compatible: one for each thread.
class ChunkEncoder {
 public:
  // `encoder` must outlive it.
  explicit ChunkEncoder(DifferenceEncoder& encoder);
  ~ChunkEncoder();

  // A chunk in one call: Start, Append for each pair of pieces, Finish. The pieces of base and target hold the
  // chunk's bytes in order; they need not be cut alike.
  void Encode(uint32_t chunk, std::span<const std::span<std::byte>> base,
              std::span<const std::span<std::byte>> target);
  void Encode(uint32_t chunk, std::span<const std::byte> base, std::span<const std::byte> target);

  // The same in steps, front to back, for a put that compares what it just copied and still has in its
  // cache. REQUIRES: both spans of a step have one size, a multiple of kTensorAlignment; the steps make up
  // the chunk.
  void Start(uint32_t chunk);
  void Append(std::span<const std::byte> base, std::span<const std::byte> target);
  // Stores the record in the DifferenceEncoder.
  void Finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast
