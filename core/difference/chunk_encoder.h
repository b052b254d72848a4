// Makes the record of a chunk: compares the chunk with the base's chunk, and encodes the changes. Of all
// modes it uses the one with the smallest record. A DifferenceEncoder collects the records.
//
// If the memory for a record cannot be had, the DifferenceEncoder gives up the whole difference
// (DifferenceEncoder::NoteNoMemory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/difference/difference_encoder.h"

namespace tensorcast {

// Encodes one chunk after another. Reuses its working memory (at most a few chunks), and writes records to
// the encoder's memory. Thread-compatible: use one for each thread.
class ChunkEncoder {
 public:
  // `encoder` must outlive this object.
  explicit ChunkEncoder(DifferenceEncoder& encoder);
  ~ChunkEncoder();

  // Encodes a whole chunk: Start, Append, Finish. `base` and `target` are pieces that have the chunk's bytes
  // in order; the sizes of their pieces may differ.
  void Encode(uint32_t chunk, std::span<const std::span<std::byte>> base,
              std::span<const std::span<std::byte>> target);
  void Encode(uint32_t chunk, std::span<const std::byte> base, std::span<const std::byte> target);

  // Encodes a chunk in steps, front to back. REQUIRES: both spans of a step have the same size, a multiple
  // of kTensorAlignment, and the steps together are the whole chunk.
  void Start(uint32_t chunk);
  void Append(std::span<const std::byte> base, std::span<const std::byte> target);
  // Stores the record in the DifferenceEncoder.
  void Finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast
