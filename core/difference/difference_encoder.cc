#include "core/difference/difference_encoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/log/check.h"
#include "core/difference/difference_artifact.h"
#include "core/difference/difference_index.h"

namespace tensorcast {
namespace {

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

uint64_t BytesOf(const EncodedDifference::Record& record) {
  uint64_t bytes = 0;
  for (const std::span<const std::byte> piece : record) bytes += piece.size();
  return bytes;
}

// Each piece stays where it is, also when the vector of pieces grows: records point into them.
class HeapRecordMemory final : public RecordMemory {
 public:
  absl::StatusOr<Pieces> Add(uint64_t min_bytes) override {
    absl::MutexLock lock(&mutex_);
    pieces_.push_back(std::make_unique_for_overwrite<std::byte[]>(min_bytes));
    return Pieces{{pieces_.back().get(), min_bytes}};
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> pieces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<RecordMemory> MakeHeapRecordMemory() { return std::make_shared<HeapRecordMemory>(); }

// The image is never laid out as a whole: its parts lie in the index and in the records, and a range of it is
// put together on demand. A record is copied as far as it lies in the range.
void EncodedDifference::CopyImage(ByteRange range, std::byte* destination) const {
  const uint64_t end = range.offset + range.bytes;
  DCHECK_LE(end, layout.image_bytes);
  std::memset(destination, 0, range.bytes);  // the padding
  const auto copy = [&](uint64_t offset, std::span<const std::byte> bytes) {
    const uint64_t first = std::max(offset, range.offset);
    const uint64_t last = std::min(offset + bytes.size(), end);
    if (first < last) {
      std::memcpy(destination + (first - range.offset), bytes.data() + (first - offset), last - first);
    }
  };
  copy(0, AsBytes(index));
  const uint64_t records_offset = layout.tensors[1].offset;
  // Records of size 0 share their begin with the next one. The search finds the last record that begins at or
  // before the range, so none that reaches into it is missed.
  const uint64_t skipped = std::max(range.offset, records_offset) - records_offset;
  size_t chunk = std::ranges::upper_bound(record_begins, skipped) - record_begins.begin();
  for (chunk = std::max<size_t>(chunk, 1) - 1; chunk < records.size(); ++chunk) {
    uint64_t offset = records_offset + record_begins[chunk];
    if (offset >= end) break;
    for (const std::span<const std::byte> piece : records[chunk]) {
      copy(offset, piece);
      offset += piece.size();
    }
  }
}

DifferenceEncoder::DifferenceEncoder(DifferenceGeometry geometry, std::shared_ptr<RecordMemory> memory)
    : geometry_(std::move(geometry)), memory_(std::move(memory)), records_(geometry_.chunk_count()) {}

bool DifferenceEncoder::TooLarge() const {
  // Relaxed, here and for no_memory_: an encoder that sees the new number late only makes a record for
  // nothing. The caller of Finish has synchronised with all encoders.
  return bytes_.load(std::memory_order_relaxed) > geometry_.image_bytes / 2;
}

absl::Status DifferenceEncoder::memory_status() const {
  absl::MutexLock lock(&mutex_);
  return memory_status_;
}

void DifferenceEncoder::NoteNoMemory(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  // Update keeps the first error.
  memory_status_.Update(why);
  no_memory_.store(true, std::memory_order_relaxed);
}

void DifferenceEncoder::Store(uint32_t chunk, RecordMode mode, EncodedDifference::Record record) {
  // Without a lock: each chunk has an entry of its own, and one thread stores it.
  StoredRecord& stored = records_[chunk];
  CHECK(!stored.stored) << "chunk " << chunk << " has a record already";
  bytes_.fetch_add(mode == RecordMode::kWhole ? geometry_.chunk(chunk).bytes : BytesOf(record),
                   std::memory_order_relaxed);
  stored = {.mode = mode, .stored = true, .bytes = std::move(record)};
}

std::optional<EncodedDifference> DifferenceEncoder::Finish() {
  // Without a difference the memory is given back at the end of this function.
  std::shared_ptr<RecordMemory> memory = std::exchange(memory_, nullptr);
  if (GivenUp()) return std::nullopt;
  EncodedDifference encoded;
  encoded.memory = std::move(memory);
  DifferenceIndex index;
  for (StoredRecord& record : records_) {
    CHECK(record.stored) << "chunk " << index.modes.size() << " has no record";
    const auto chunk = static_cast<uint32_t>(index.modes.size());
    const uint64_t bytes = BytesOf(record.bytes);
    index.modes.push_back(record.mode);
    index.record_bytes.push_back(static_cast<uint32_t>(bytes));
    encoded.record_begins.push_back(encoded.records_bytes);
    encoded.records_bytes += bytes;
    if (record.mode == RecordMode::kWhole) encoded.whole_bytes += geometry_.chunk(chunk).bytes;
    encoded.records.push_back(std::move(record.bytes));
  }
  encoded.index = EncodeIndex(index, geometry_);
  encoded.layout = DifferenceLayout(encoded.index.size(), encoded.records_bytes);
  return encoded;
}

}  // namespace tensorcast
