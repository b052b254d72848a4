// The changes of a chunk as lists of places and operands, which a GPU applies to its copy of the base's chunk
// (core/device: Stream::Change). Uses no device: the lists are written to memory of the caller.
//
//   record ─► blocks of at most 65,536 elements; each begins at a changed element and has:
//               a list of the elements that change by a step, and the steps
//               a list of the elements with an escaped step, and their values
//
// Next returns the lists of one difference of the path (DecoderPath) after another. Apply the lists of one
// call in any order, but before the lists of later calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/difference/difference_decoder.h"

namespace tensorcast {

// Changes in a block of elements of one width.
struct ChangeList {
  uint64_t offset = 0;                  // of the block, in bytes from the chunk's start
  uint32_t elements = 0;                // in the block
  uint32_t width = 1;                   // bytes of an element
  bool steps = false;                   // true: operands are one-byte steps; false: values of `width` bytes
  std::span<const uint16_t> places;     // counted from the block's first element, ascending
  const std::byte* operands = nullptr;  // one for each place; values begin at a multiple of `width`
};

// Lists one chunk after another, and reuses its memory. Thread-compatible: use one for each thread.
class ChangeLists {
 public:
  static constexpr uint32_t kBlockElements = uint32_t{1} << 16;
  // Enough bytes for the lists of one element.
  static constexpr size_t kMinRoomBytes = 64;

  ChangeLists();
  ~ChangeLists();

  // Begins a chunk. Errors as ChunkRebuilder::Rebuild.
  absl::Status Begin(DecoderPath path, uint32_t chunk);

  // Lists that refer to the front of the caller's memory.
  struct Part {
    std::span<const ChangeList> lists;  // of one difference; valid until the next call of Begin or Next
    size_t bytes = 0;                   // the bytes of the memory that the lists take
  };
  // Writes the next lists to `room`, as many as fit. A result without lists means that `room` is too small
  // for the next list; kMinRoomBytes bytes are always enough. INVALID_ARGUMENT for a record with more or
  // fewer values than escaped steps (kEscapedStep); some lists of that record may have been returned before.
  // REQUIRES: done() is false.
  absl::StatusOr<Part> Next(std::span<std::byte> room);
  // Whether Next has returned all lists of the chunk.
  bool done() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast
