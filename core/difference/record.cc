#include "core/difference/record.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "core/difference/element_order.h"

namespace tensorcast {
namespace {

// The fastest of the ordinary levels: compression runs inside a put.
constexpr int kCompressionLevel = 1;
// Below this a frame's head is longer than what it saves.
constexpr size_t kMinCompressedBytes = 32;

std::string_view Text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const uint8_t> Octets(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

absl::Status Damaged(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("read a record of a difference: ", what,
                                                 "; no action is needed, the whole chunk is used instead"));
}

// Checks that the gaps give as many positions as changed, all of them inside the chunk.
absl::Status CheckGaps(std::span<const uint8_t> gaps, uint64_t changed, uint64_t elements) {
  uint64_t sum = 0;
  uint64_t ends = 0;
  for (size_t begin = 0; begin < gaps.size();) {
    // Sums of 32 bits in short blocks, which compilers turn into wide instructions.
    const size_t end = std::min(begin + (size_t{1} << 16), gaps.size());
    uint32_t block_sum = 0;
    uint32_t block_ends = 0;
    for (; begin < end; ++begin) {
      block_sum += gaps[begin];
      block_ends += gaps[begin] != kLongGap;
    }
    sum += block_sum;
    ends += block_ends;
  }
  if (ends != changed) return Damaged("the number of gaps differs from the number of changed elements");
  if (gaps.back() == kLongGap) return Damaged("the last gap has no end");
  if (sum + changed > elements) return Damaged("the gaps reach past the chunk");
  return absl::OkStatus();
}

absl::Status CheckBitmap(std::span<const uint8_t> bits, uint64_t changed, uint64_t elements) {
  uint64_t set = 0;
  for (const uint8_t byte : bits) set += static_cast<uint64_t>(std::popcount(byte));
  if (set != changed) {
    return Damaged("the number of bits set in the bitmap differs from the number of changed elements");
  }
  // The bits past the last element would name elements of which there are none.
  if (elements % 8 != 0 && bits.back() >> elements % 8 != 0) {
    return Damaged("the bitmap has bits past the last element");
  }
  return absl::OkStatus();
}

absl::Status CheckDenseSteps(std::span<const uint8_t> steps, uint64_t changed) {
  const auto unchanged = static_cast<uint64_t>(std::ranges::count(steps, uint8_t{0}));
  if (steps.size() - unchanged == changed) return absl::OkStatus();
  return Damaged("the number of steps differs from the number of changed elements");
}

}  // namespace

// libzstd keeps its tables in a context, which is costly to make and is used for all records of a thread. A
// null context (no memory) is not an error here: the streams are then stored raw.
struct RecordWriter::Context {
  ZSTD_CCtx* const zstd = ZSTD_createCCtx();
  ~Context() { ZSTD_freeCCtx(zstd); }
};

RecordWriter::RecordWriter() : context_(std::make_unique<Context>()) {}
RecordWriter::~RecordWriter() = default;

bool RecordWriter::Compress(std::span<const uint8_t> content) {
  compressed_.Clear();
  if (content.size() < kMinCompressedBytes || context_->zstd == nullptr) return false;
  const size_t room = ZSTD_compressBound(content.size());
  uint8_t* const to = compressed_.Room(room);
  const size_t stored =
      ZSTD_compressCCtx(context_->zstd, to, room, content.data(), content.size(), kCompressionLevel);
  // Equal sizes would say "raw" to a reader, so a frame has to be shorter.
  if (ZSTD_isError(stored) != 0 || stored >= content.size()) return false;
  compressed_.Commit(stored);
  return true;
}

size_t RecordWriter::StoredBytes(std::span<const uint8_t> content) {
  return Compress(content) ? compressed_.size() : content.size();
}

void RecordWriter::PutStream(std::span<const uint8_t> content, std::string& out) {
  const std::span<const uint8_t> stored = Compress(content) ? compressed_.bytes() : content;
  ByteWriter head;
  head.Put(static_cast<uint32_t>(content.size())).Put(static_cast<uint32_t>(stored.size()));
  out.append(head.bytes()).append(Text(stored));
}

std::string RecordWriter::Write(const RecordStreams& streams) {
  std::string out = ByteWriter().Put(streams.changed).Take();
  PutStream(streams.positions, out);
  PutStream(streams.steps, out);
  PutStream(streams.values, out);
  return out;
}

struct RecordReader::Context {
  ZSTD_DCtx* const zstd = ZSTD_createDCtx();
  std::array<ByteBuffer, 3> streams;
  ~Context() { ZSTD_freeDCtx(zstd); }

  // The content of a stream, which must have at least `min` and at most `max` bytes.
  absl::StatusOr<std::span<const uint8_t>> Read(ByteReader& in, ByteBuffer& buffer, uint64_t min,
                                                uint64_t max);
};

RecordReader::RecordReader() : context_(std::make_unique<Context>()) {}
RecordReader::~RecordReader() = default;
RecordReader::RecordReader(RecordReader&&) noexcept = default;

absl::StatusOr<std::span<const uint8_t>> RecordReader::Context::Read(ByteReader& in, ByteBuffer& buffer,
                                                                     uint64_t min, uint64_t max) {
  // The size is compared with what the caller allows before memory is taken for it: a peer may have written
  // it.
  const auto content_bytes = in.Get<uint32_t>();
  const std::span<const uint8_t> stored = Octets(in.GetString<uint32_t>());
  if (!in.ok()) return Damaged("a stream reaches past the end of the record");
  if (content_bytes < min || content_bytes > max) {
    return Damaged(absl::StrCat("a stream has the impossible size of ", content_bytes, " bytes, and ", min,
                                " to ", max, " bytes are possible"));
  }
  if (stored.size() == content_bytes) return stored;
  if (stored.size() > content_bytes) return Damaged("a stream is longer than its content");
  if (zstd == nullptr) {
    return absl::ResourceExhaustedError(
        "read a record of a difference: zstd could not allocate memory; no action is needed, the whole chunk "
        "is used instead");
  }
  buffer.Clear();
  uint8_t* const to = buffer.Room(content_bytes);
  const size_t bytes = ZSTD_decompressDCtx(zstd, to, content_bytes, stored.data(), stored.size());
  if (ZSTD_isError(bytes) != 0 || bytes != content_bytes) return Damaged("a stream cannot be decompressed");
  buffer.Commit(bytes);
  return buffer.bytes();
}

absl::StatusOr<RecordStreams> RecordReader::Read(RecordMode mode, std::span<const std::byte> record,
                                                 uint64_t elements, uint64_t chunk_bytes) {
  ByteReader in({reinterpret_cast<const char*>(record.data()), record.size()});
  RecordStreams streams{
      .mode = mode, .changed = in.Get<uint32_t>(), .positions = {}, .steps = {}, .values = {}};
  if (!in.ok()) return Damaged("the record is too short for the number of changed elements");
  if (streams.changed == 0 || streams.changed > elements) {
    return Damaged(absl::StrCat("the number of changed elements is ", streams.changed, ", and 1 to ",
                                elements, " are possible"));
  }
  // The sizes that the streams can have, from the mode and the number of changed elements.
  uint64_t min_positions = 0;
  uint64_t max_positions = 0;
  uint64_t steps = streams.changed;
  switch (mode) {
    case RecordMode::kSparse:
      min_positions = streams.changed;
      // A byte for each changed element, and one for each 255 unchanged ones at most.
      max_positions = streams.changed + elements / kLongGap;
      break;
    case RecordMode::kBitmap:
      min_positions = max_positions = BitmapBytes(elements);
      break;
    case RecordMode::kDense:
      steps = elements;
      break;
    default:
      return Damaged("the mode has no records");
  }
  auto& [positions_buffer, steps_buffer, values_buffer] = context_->streams;
  TC_ASSIGN_OR_RETURN(streams.positions, context_->Read(in, positions_buffer, min_positions, max_positions));
  TC_ASSIGN_OR_RETURN(streams.steps, context_->Read(in, steps_buffer, steps, steps));
  TC_ASSIGN_OR_RETURN(streams.values, context_->Read(in, values_buffer, 0, chunk_bytes));
  if (!in.AtEnd()) return Damaged("bytes follow the last stream");
  if (mode == RecordMode::kSparse) {
    TC_RETURN_IF_ERROR(CheckGaps(streams.positions, streams.changed, elements));
  }
  if (mode == RecordMode::kBitmap) {
    TC_RETURN_IF_ERROR(CheckBitmap(streams.positions, streams.changed, elements));
  }
  if (mode == RecordMode::kDense) TC_RETURN_IF_ERROR(CheckDenseSteps(streams.steps, streams.changed));
  return streams;
}

}  // namespace tensorcast
