// Makes a difference from the records of its chunks while a target is put. Several threads share a
// DifferenceEncoder; each thread has a ChunkEncoder (chunk_encoder.h), which makes the records.
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

// The memory for records until the difference is stored. The records may take up to half as many bytes as the
// image. Implementations are thread-safe.
class RecordMemory {
 public:
  using Pieces = std::vector<std::span<std::byte>>;

  virtual ~RecordMemory() = default;
  // Adds memory for at least `min_bytes`, which lives as long as this object. May block. After an error no
  // difference is made.
  virtual absl::StatusOr<Pieces> Add(uint64_t min_bytes) = 0;
};
// Unlimited memory from the heap, for tests and tools.
std::shared_ptr<RecordMemory> MakeHeapRecordMemory();

// An encoded difference. Its image is the image of an artifact of kind kDifference.
struct EncodedDifference {
  using Record = std::vector<std::span<const std::byte>>;  // the pieces of a record, in order

  std::shared_ptr<RecordMemory> memory;  // of the records
  std::string index;
  std::vector<Record> records;          // one for each chunk; empty for kSame and kWhole
  std::vector<uint64_t> record_begins;  // one for each chunk: its offset in the tensor of records
  uint64_t records_bytes = 0;           // of all records
  uint64_t whole_bytes = 0;             // of the chunks with mode kWhole
  ImageLayout layout;                   // DifferenceLayout(index.size(), records_bytes)

  // Copies the image's bytes of `range` to `destination`. Thread-safe. REQUIRES: the range lies in the image.
  void CopyImage(ByteRange range, std::byte* destination) const;
};

class DifferenceEncoder {
 public:
  explicit DifferenceEncoder(DifferenceGeometry geometry,
                             std::shared_ptr<RecordMemory> memory = MakeHeapRecordMemory());

  const DifferenceGeometry& geometry() const { return geometry_; }
  RecordMemory& memory() { return *memory_; }
  // True once the difference is larger than half the image, or memory has run out. If true, Finish returns
  // nullopt, and the remaining chunks need not be compared.
  bool GivenUp() const { return TooLarge() || no_memory_.load(std::memory_order_relaxed); }
  // The error of RecordMemory::Add; OK if there was none.
  absl::Status memory_status() const;

  // Stores the record of a chunk; the record's bytes are in memory(). Thread-safe for different chunks.
  // REQUIRES: chunk < geometry().chunk_count(), and each chunk is stored only once.
  void Store(uint32_t chunk, RecordMode mode, EncodedDifference::Record record);
  // Gives up the difference because memory for a record could not be allocated. Thread-safe.
  void NoteNoMemory(const absl::Status& why);
  // REQUIRES: no thread is storing this chunk.
  bool IsStored(uint32_t chunk) const { return records_[chunk].stored; }

  // Makes the difference. nullopt if memory ran out, or if the difference, including the chunks with mode
  // kWhole, is larger than half the image. Call it once. REQUIRES: no other call is running; each chunk was
  // stored, unless GivenUp().
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
  std::atomic<uint64_t> bytes_ = 0;  // bytes that a receiver must fetch: records and chunks with mode kWhole
};

}  // namespace tensorcast
