// Makes a difference while a target is put: compares each chunk with the base's chunk, and makes a record in
// the mode that takes the smallest number of bytes. DifferenceEncoder is thread-safe; each thread has a
// ChunkEncoder.
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

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/byte_range.h"
#include "core/artifact/layout.h"
#include "core/difference/element_runs.h"
#include "core/difference/record_mode.h"

namespace tensorcast {

// The memory for records until the difference is stored; they may take half as many bytes as the image.
// Thread-safe.
class RecordMemory {
 public:
  using Pieces = std::vector<std::span<std::byte>>;

  virtual ~RecordMemory() = default;
  // Adds memory for at least `min_bytes`, which stays as long as this object. After an error no difference is
  // made. May block.
  virtual absl::StatusOr<Pieces> Add(uint64_t min_bytes) = 0;
};
// Unlimited memory from the heap, for tests and tools.
std::shared_ptr<RecordMemory> MakeHeapRecordMemory();

// An encoded difference. Its image is the image of an artifact of kind kDifference.
struct EncodedDifference {
  using Record = std::vector<std::span<const std::byte>>;  // in pieces

  std::shared_ptr<RecordMemory> memory;  // of the records
  std::string index;
  std::vector<Record> records;          // one a chunk; empty for same and whole
  std::vector<uint64_t> record_begins;  // one a chunk, in the tensor of records
  uint64_t records_bytes = 0;           // of all records
  uint64_t whole_bytes = 0;             // of the chunks that come whole
  ImageLayout layout;                   // DifferenceLayout(index.size(), records_bytes)

  // Writes the image's bytes of `range` to `destination`. Thread-safe. REQUIRES: the range lies in the image.
  void CopyImage(ByteRange range, std::byte* destination) const;
};

class DifferenceEncoder {
 public:
  explicit DifferenceEncoder(DifferenceGeometry geometry,
                             std::shared_ptr<RecordMemory> memory = MakeHeapRecordMemory());

  const DifferenceGeometry& geometry() const { return geometry_; }
  RecordMemory& memory() { return *memory_; }
  // Whether no difference will be made, because it is already larger than half the image or because there is
  // no memory. The remaining chunks then need not be compared.
  bool GivenUp() const { return TooLarge() || no_memory_.load(std::memory_order_relaxed); }
  // Why there was no memory for a record; OK: there was.
  absl::Status memory_status() const;

  // Stores the record of a chunk, of which the bytes are in the memory of this encoder. Thread-safe for
  // different chunks. REQUIRES: chunk < chunk_count(), and it is stored only once.
  void Store(uint32_t chunk, RecordMode mode, EncodedDifference::Record record);
  // There is no memory for a record: gives the difference up. Thread-safe.
  void NoteNoMemory(const absl::Status& why);
  // Thread-safe for a chunk that no thread stores meanwhile.
  bool IsStored(uint32_t chunk) const { return records_[chunk].stored; }

  // After all chunks were stored; once. std::nullopt when there was no memory, or the difference, its whole
  // chunks included, is larger than half the image. REQUIRES: no other call runs; each chunk was stored,
  // unless GivenUp().
  std::optional<EncodedDifference> Finish();

 private:
  struct StoredRecord {
    RecordMode mode = RecordMode::kWhole;
    bool stored = false;
    EncodedDifference::Record bytes;
  };
  bool TooLarge() const;

  const DifferenceGeometry geometry_;
  std::shared_ptr<RecordMemory> memory_;  // null after Finish
  std::vector<StoredRecord> records_;
  std::atomic<bool> no_memory_ = false;
  mutable absl::Mutex mutex_;
  absl::Status memory_status_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> bytes_ = 0;  // what a receiver has to bring: records and whole chunks
};

// Encodes one chunk after another. It reuses its working memory (at most a few chunks) and writes records to
// the encoder's memory. Thread-compatible: one for each thread.
class ChunkEncoder {
 public:
  // `encoder` must outlive it.
  explicit ChunkEncoder(DifferenceEncoder& encoder);
  ~ChunkEncoder();

  // A chunk in one call: Start, Append for each pair of pieces, Finish. The pieces of base and target hold
  // the chunk's bytes in order; they need not be cut alike.
  void Encode(uint32_t chunk, std::span<const std::span<std::byte>> base,
              std::span<const std::span<std::byte>> target);
  void Encode(uint32_t chunk, std::span<const std::byte> base, std::span<const std::byte> target);

  // Encodes a chunk in steps, front to back, for a put that compares bytes while they are still in the cache.
  // REQUIRES: both spans of a step have the same size, a multiple of kTensorAlignment; all steps make up the
  // chunk.
  void Start(uint32_t chunk);
  void Append(std::span<const std::byte> base, std::span<const std::byte> target);
  // Stores the record in the DifferenceEncoder.
  void Finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast
