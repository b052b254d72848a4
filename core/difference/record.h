// The bytes of a record (FORMAT.md): a header and three streams, each compressed (zstd, RFC 8878) if
// compression makes the stream shorter. Both classes reuse their memory and are thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/difference/byte_buffer.h"
#include "core/difference/element_order.h"
#include "core/difference/record_mode.h"

namespace tensorcast {

// The decompressed content of a record.
struct RecordStreams {
  RecordMode mode = RecordMode::kSame;
  uint32_t changed = 0;                // number of changed elements
  std::span<const uint8_t> positions;  // gaps, or a bit for each element; empty for kDense
  std::span<const uint8_t> steps;      // of the changed elements; for kDense of all elements
  std::span<const uint8_t> values;     // of the elements with kEscapedStep, in order
};

// Returns the number of unchanged elements up to the next change, and moves `gap` past this gap. REQUIRES:
// `gap` points to a gap in the positions of a sparse record that RecordReader has checked.
inline uint64_t TakeGap(const uint8_t*& gap) {
  uint64_t elements = 0;
  for (; *gap == kLongGap; ++gap) elements += kLongGap;
  return elements + *gap++;
}

// The size in bytes of a bitmap of `elements` elements.
constexpr uint64_t BitmapBytes(uint64_t elements) { return (elements + 7) / 8; }

class RecordWriter {
 public:
  RecordWriter();
  ~RecordWriter();

  std::string Write(const RecordStreams& streams);
  // The number of bytes that a stream with this content takes in a record.
  size_t StoredBytes(std::span<const uint8_t> content);

 private:
  void PutStream(std::span<const uint8_t> content, std::string& out);
  // Compresses `content` into compressed_; false if the result is not shorter than `content`.
  bool Compress(std::span<const uint8_t> content);

  struct Context;
  const std::unique_ptr<Context> context_;
  ByteBuffer compressed_;
};

class RecordReader {
 public:
  RecordReader();
  ~RecordReader();
  RecordReader(RecordReader&&) noexcept;

  // Reads the record of a chunk with `elements` elements in `chunk_bytes` bytes. The result is valid until
  // the next call, and only while `record` is valid. On success the positions name exactly `changed` elements
  // of the chunk, and there is a step for each (for kDense: for every element of the chunk). INVALID_ARGUMENT
  // for any other record. Allocates at most the memory that the streams of such a chunk can need.
  absl::StatusOr<RecordStreams> Read(RecordMode mode, std::span<const std::byte> record, uint64_t elements,
                                     uint64_t chunk_bytes);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace tensorcast
