// A record's bytes (FORMAT.md): a head and three streams, each compressed if that makes it shorter. Both
// classes reuse their memory and are thread-compatible.
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
  // The size of a stream with this content, after compression.
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

  // The streams of a record, for a chunk with this many elements and bytes. They are valid until the next
  // call, and while `record` is. It guarantees that the positions name `changed` elements of the chunk, with
  // a step for each (for kDense: a step for every element). INVALID_ARGUMENT for any other record. Takes no
  // more memory than the streams of such a chunk can need.
  absl::StatusOr<RecordStreams> Read(RecordMode mode, std::span<const std::byte> record, uint64_t elements,
                                     uint64_t chunk_bytes);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace tensorcast
