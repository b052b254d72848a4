// Reads the records that a path of differences has for a chunk, and reuses its memory for the next chunk.
// Private to this folder. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/difference/difference_decoder.h"
#include "core/difference/element_runs.h"
#include "core/difference/record.h"

namespace tensorcast {

class ChunkRecords {
 public:
  // INVALID_ARGUMENT for a damaged record and for differences of several geometries, FAILED_PRECONDITION if
  // ModeOf is kWhole. REQUIRES: the path is not empty.
  absl::Status Read(DecoderPath path, uint32_t chunk);

  // The results below describe the chunk that was read last. They are valid until the next call of Read.
  const std::vector<ElementRun>& runs() const { return runs_; }  // with offsets from the chunk's start
  uint64_t elements() const { return elements_; }
  // One for each difference that changes the chunk, in the path's order. RecordReader has checked the
  // streams, but not whether there are as many values as escaped steps (kEscapedStep).
  std::span<const RecordStreams> streams() const { return streams_; }

 private:
  // The memory of one record: the reader's buffers hold the streams.
  struct Part {
    RecordReader reader;
    std::vector<std::byte> gathered;
  };

  std::vector<Part> parts_;  // kept for the next chunk
  std::vector<ElementRun> runs_;
  uint64_t elements_ = 0;
  std::vector<RecordStreams> streams_;
};

// The error of a record that has more or fewer values than escaped steps (kEscapedStep).
absl::Status WrongNumberOfValues();

}  // namespace tensorcast
