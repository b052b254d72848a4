#include "core/difference/chunk_encoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/status/statusor.h"
#include "core/difference/byte_buffer.h"
#include "core/difference/changed_marks.h"
#include "core/difference/element_order.h"
#include "core/difference/element_runs.h"
#include "core/difference/pieces.h"
#include "core/difference/record.h"

namespace tensorcast {
namespace {

// Compared at a time: the marks and positions of such a block stay in the first cache level.
constexpr size_t kBlockBytes = size_t{8} << 10;
// With fewer changed elements than one in so many, a bitmap or a plane of steps is shorter than gaps by a
// tenth at most, and to try them costs more than the encoding (README.md).
constexpr uint64_t kSparseFraction = 16;
// Values are whole elements, where gaps and steps take a byte each, so they decide whether a record pays.
// When they take this part of a chunk, a look at the last kTrialBytes of them decides whether encoding it
// goes on.
constexpr uint64_t kValuesFraction = 4;
constexpr size_t kTrialBytes = size_t{64} << 10;

// How much memory for records is asked for at once: a small part of the image, so that little of it stays
// unused.
constexpr uint64_t kMaxAddedBytes = uint64_t{4} << 20;
constexpr uint64_t kAddedFraction = 256;

}  // namespace

// How a chunk becomes a record. Append cuts the chunk into blocks, each inside one run of elements of one
// width. Block marks the elements that differ and turns the marks into positions; PutChanged turns positions
// into gaps, steps and values, the streams of the mode kSparse. At the end Store writes the sparse record. If
// many elements changed, it makes the other two modes from the same streams and keeps the shortest record. A
// chunk leaves this path early where its values do not compress (TryValues), or where the whole difference
// was given up: it is then stored as kWhole.
struct ChunkEncoder::State {
  explicit State(DifferenceEncoder& shared) : encoder(shared) {}

  DifferenceEncoder& encoder;

  // The chunk at hand. Elements are counted from the chunk's start, whatever their widths (FORMAT.md).
  uint32_t chunk = 0;
  uint64_t chunk_bytes = 0;
  std::vector<ElementRun> runs;
  size_t run = 0;         // of the next byte
  uint64_t offset = 0;    // of the next byte
  uint64_t elements = 0;  // so far
  uint64_t next_gap = 0;  // the element behind the last that changed
  uint64_t changed = 0;
  bool incompressible = false;  // encoded as kWhole without a look at the rest
  bool tried = false;           // whether a look at its values was taken

  ByteBuffer gaps;
  ByteBuffer steps;
  ByteBuffer values;
  ByteBuffer plane;  // bitmap or dense steps
  RecordWriter writer;
  RecordMemory::Pieces room;  // for the next records, the last piece first

  void Block(uint32_t width, const std::byte* base, const std::byte* target, size_t bytes);
  template <typename U>
  void PutChanged(std::span<const uint16_t> positions, const std::byte* base, const std::byte* target);
  void TryValues();
  // Calls visit(element, step) for each element that changed.
  void ForEachChanged(auto&& visit) const;
  std::span<const uint8_t> Bitmap();
  std::span<const uint8_t> DenseSteps();
  // Copies a record to the encoder's memory.
  absl::StatusOr<EncodedDifference::Record> Keep(std::span<const std::byte> record);
  void Store();
};

template <typename U>
void ChunkEncoder::State::PutChanged(std::span<const uint16_t> positions, const std::byte* base,
                                     const std::byte* target) {
  // Room for the worst case is made once, so that the loop writes without a check. Of gaps that is a byte for
  // each position, and one for each 255 elements from the last change to the end of this block.
  uint8_t* const first_gap = gaps.Room(positions.size() + (elements + kBlockBytes - next_gap) / kLongGap + 1);
  uint8_t* const first_step = steps.Room(positions.size());
  uint8_t* const first_value = values.Room(positions.size() * sizeof(U));
  uint8_t* gap_end = first_gap;
  uint8_t* step_end = first_step;
  uint8_t* value_end = first_value;
  uint64_t next = next_gap;
  for (const uint16_t position : positions) {
    uint64_t gap = elements + position - next;
    next = elements + position + 1;
    for (; gap >= kLongGap; gap -= kLongGap) *gap_end++ = kLongGap;
    *gap_end++ = static_cast<uint8_t>(gap);
    // A step of 255 and more does not fit its byte: the target's value goes to the third stream instead.
    const U value = LoadElement<U>(target + position * sizeof(U));
    const U step = StepBetween<U>(LoadElement<U>(base + position * sizeof(U)), value);
    if (step < kEscapedStep) {
      *step_end++ = static_cast<uint8_t>(step);
    } else {
      *step_end++ = kEscapedStep;
      StoreElement<U>(value_end, value);
      value_end += sizeof(U);
    }
  }
  next_gap = next;
  changed += positions.size();
  gaps.Commit(static_cast<size_t>(gap_end - first_gap));
  steps.Commit(static_cast<size_t>(step_end - first_step));
  values.Commit(static_cast<size_t>(value_end - first_value));
}

void ChunkEncoder::State::Block(uint32_t width, const std::byte* base, const std::byte* target,
                                size_t bytes) {
  // Sized for elements of one byte. The loop below may write up to kAtOnce positions past the last.
  std::array<uint64_t, kBlockBytes / kMarksPerWord> marks;
  constexpr size_t kAtOnce = 4;
  std::array<uint16_t, kBlockBytes + kAtOnce> positions;
  MarkChanged(width, base, target, bytes, marks.data());
  const size_t count = bytes / width;
  size_t found = 0;
  for (size_t word = 0; word * kMarksPerWord < count; ++word) {
    // Most words have few marks, so four positions are written whether there are as many or not, and no
    // branch depends on how many there are (as simdjson does it). What was written too much is overwritten by
    // the next word.
    uint64_t left = marks[word];
    const size_t end = found + static_cast<size_t>(std::popcount(left));
    for (;;) {
      for (size_t i = 0; i < kAtOnce; ++i) {
        positions[found + i] = static_cast<uint16_t>(word * kMarksPerWord + std::countr_zero(left));
        left &= left - 1;
      }
      if (found + kAtOnce >= end) break;
      found += kAtOnce;
    }
    found = end;
  }
  if (found > 0) {
    WithElementType(width, [&]<typename U>(U) { PutChanged<U>({positions.data(), found}, base, target); });
  }
  elements += count;
}

void ChunkEncoder::State::TryValues() {
  tried = true;
  const auto trial = values.bytes().last(std::min(kTrialBytes, values.size()));
  // Less than a quarter is saved: the chunk comes whole, and its rest is not compared.
  incompressible = writer.StoredBytes(trial) > trial.size() / 4 * 3;
}

// Reads the gaps and steps that PutChanged wrote.
void ChunkEncoder::State::ForEachChanged(auto&& visit) const {
  uint64_t element = 0;
  const uint8_t* step = steps.bytes().data();
  for (const uint8_t gap : gaps.bytes()) {
    element += gap;
    if (gap != kLongGap) visit(element++, *step++);
  }
}

std::span<const uint8_t> ChunkEncoder::State::Bitmap() {
  const size_t bytes = BitmapBytes(elements);
  plane.Clear();
  uint8_t* const bits = plane.Room(bytes);
  std::memset(bits, 0, bytes);
  ForEachChanged(
      [bits](uint64_t element, uint8_t) { bits[element / 8] |= static_cast<uint8_t>(1u << element % 8); });
  plane.Commit(bytes);
  return plane.bytes();
}

std::span<const uint8_t> ChunkEncoder::State::DenseSteps() {
  plane.Clear();
  uint8_t* const all = plane.Room(elements);
  std::memset(all, 0, elements);
  ForEachChanged([all](uint64_t element, uint8_t step) { all[element] = step; });
  plane.Commit(elements);
  return plane.bytes();
}

absl::StatusOr<EncodedDifference::Record> ChunkEncoder::State::Keep(std::span<const std::byte> record) {
  // `room` is used from its back, where a piece can be shortened and removed without moving the others.
  uint64_t free = 0;
  for (const std::span<std::byte> piece : room) free += piece.size();
  if (free < record.size()) {
    const uint64_t share =
        std::min(kMaxAddedBytes, std::max<uint64_t>(encoder.geometry().image_bytes / kAddedFraction, 1));
    absl::StatusOr<RecordMemory::Pieces> added =
        encoder.memory().Add(std::max<uint64_t>(share, record.size() - free));
    if (!added.ok()) return added.status();
    // The new pieces go behind what is left of the old ones, which is used first.
    room.insert(room.begin(), added->rbegin(), added->rend());
  }
  EncodedDifference::Record kept;
  while (!record.empty()) {
    const std::span<std::byte> to = room.back().first(std::min(room.back().size(), record.size()));
    std::memcpy(to.data(), record.data(), to.size());
    kept.push_back(to);
    record = record.subspan(to.size());
    room.back() = room.back().subspan(to.size());
    if (room.back().empty()) room.pop_back();
  }
  return kept;
}

void ChunkEncoder::State::Store() {
  if (incompressible) return encoder.Store(chunk, RecordMode::kWhole, {});
  if (changed == 0) return encoder.Store(chunk, RecordMode::kSame, {});
  RecordMode mode = RecordMode::kWhole;
  // The mode kWhole stands for the chunk's own bytes: the first candidate has to be shorter than those, each
  // other one shorter than the best so far.
  std::string shortest;
  const auto consider = [&](RecordMode candidate, std::span<const uint8_t> positions,
                            std::span<const uint8_t> candidate_steps) {
    std::string record = writer.Write({.mode = candidate,
                                       .changed = static_cast<uint32_t>(changed),
                                       .positions = positions,
                                       .steps = candidate_steps,
                                       .values = values.bytes()});
    if (record.size() >= (mode == RecordMode::kWhole ? chunk_bytes : shortest.size())) return;
    mode = candidate;
    shortest = std::move(record);
  };
  consider(RecordMode::kSparse, gaps.bytes(), steps.bytes());
  if (changed >= elements / kSparseFraction) {
    consider(RecordMode::kBitmap, Bitmap(), steps.bytes());
    consider(RecordMode::kDense, {}, DenseSteps());
  }
  if (mode == RecordMode::kWhole) return encoder.Store(chunk, mode, {});
  absl::StatusOr<EncodedDifference::Record> record = Keep(std::as_bytes(std::span(shortest)));
  if (!record.ok()) {
    // The whole difference is given up, and the put goes on: a difference only saves bytes.
    encoder.NoteNoMemory(record.status());
    return encoder.Store(chunk, RecordMode::kWhole, {});
  }
  encoder.Store(chunk, mode, *std::move(record));
}

ChunkEncoder::ChunkEncoder(DifferenceEncoder& encoder) : state_(std::make_unique<State>(encoder)) {}
ChunkEncoder::~ChunkEncoder() = default;

void ChunkEncoder::Start(uint32_t chunk) {
  State& state = *state_;
  state.chunk = chunk;
  state.chunk_bytes = state.encoder.geometry().chunk(chunk).bytes;
  state.runs = state.encoder.geometry().RunsOf(chunk);
  state.run = 0;
  state.offset = state.elements = state.next_gap = state.changed = 0;
  state.incompressible = state.encoder.GivenUp();  // then the record is not read
  state.tried = false;
  state.gaps.Clear();
  state.steps.Clear();
  state.values.Clear();
}

void ChunkEncoder::Append(std::span<const std::byte> base, std::span<const std::byte> target) {
  State& state = *state_;
  DCHECK_EQ(base.size(), target.size());
  DCHECK_EQ(base.size() % kTensorAlignment, 0u);
  DCHECK_LE(state.offset + base.size(), state.chunk_bytes);
  while (!base.empty()) {
    // Only counted, so that Finish can still check that the chunk was complete.
    if (state.incompressible) {
      state.offset += base.size();
      return;
    }
    const ElementRun* run = &state.runs[state.run];
    if (state.offset == run->offset + run->bytes) run = &state.runs[++state.run];
    const size_t bytes =
        std::min<uint64_t>({kBlockBytes, base.size(), run->offset + run->bytes - state.offset});
    state.Block(run->width, base.data(), target.data(), bytes);
    state.offset += bytes;
    base = base.subspan(bytes);
    target = target.subspan(bytes);
    if (!state.tried && state.values.size() >= std::max<uint64_t>(state.chunk_bytes / kValuesFraction, 1)) {
      state.TryValues();
    }
  }
}

void ChunkEncoder::Finish() {
  DCHECK_EQ(state_->offset, state_->chunk_bytes);
  state_->Store();
}

void ChunkEncoder::Encode(uint32_t chunk, std::span<const std::span<std::byte>> base,
                          std::span<const std::span<std::byte>> target) {
  Start(chunk);
  ZipPieces(base, target,
            [this](std::span<const std::byte> from_base, std::span<const std::byte> from_target) {
              Append(from_base, from_target);
            });
  Finish();
}

void ChunkEncoder::Encode(uint32_t chunk, std::span<const std::byte> base,
                          std::span<const std::byte> target) {
  Start(chunk);
  Append(base, target);
  Finish();
}

}  // namespace tensorcast
