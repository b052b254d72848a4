// A record's bytes (FORMAT.md): a head and three streams, each compressed where that is shorter. Both classes
// use their memory again and are thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/difference/byte_buffer.h"
#include "core/difference/record_mode.h"

namespace tensorcast {

// What a record says, decompressed.
struct RecordStreams {
  RecordMode mode = RecordMode::kSame;
  uint32_t changed = 0;                // elements
  std::span<const uint8_t> positions;  // gaps, or a bit for each element; empty for kDense
  std::span<const uint8_t> steps;      // of those that changed; for kDense of all
  std::span<const uint8_t> values;     // of the escaped steps, in order
};

// The number of bytes that bitmaps of so many elements have.
constexpr uint64_t BitmapBytes(uint64_t elements) { return (elements + 7) / 8; }

class RecordWriter {
 public:
  RecordWriter();
  ~RecordWriter();

  std::string Write(const RecordStreams& streams);
  // How many bytes these bytes have as a stream's content.
  size_t StoredBytes(std::span<const uint8_t> content);

 private:
  void PutStream(std::span<const uint8_t> content, std::string& out);
  // Into compressed_, where that is shorter than `content`; else false.
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

  // The streams of a record of a chunk with so many elements and bytes. They are valid until the next call,
  // and as long as `record` is. Of them is sure: the positions are those of `changed` elements of the chunk,
  // and there is a step for each (for kDense for all). INVALID_ARGUMENT for anything else; it takes no more
  // memory than the streams of such a chunk can have.
  absl::StatusOr<RecordStreams> Read(RecordMode mode, std::span<const std::byte> record, uint64_t elements,
                                     uint64_t chunk_bytes);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace tensorcast
