#include "core/difference/chunk_rebuilder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/difference/byte_buffer.h"
#include "core/difference/chunk_records.h"
#include "core/difference/element_order.h"
#include "core/difference/element_runs.h"
#include "core/difference/pieces.h"

namespace tensorcast {
namespace {

// Changed at a time, between the base and the target: two steps stay in the first cache levels. In smaller
// steps BLAKE3 is slower (README.md). A multiple of kTensorAlignment.
constexpr size_t kStepBytes = size_t{16} << 10;
constexpr size_t kVisitedAtOnce = 4096;

absl::Status CheckSizes(DecoderPath path, uint32_t chunk, uint64_t base_bytes, uint64_t target_bytes) {
  const uint64_t bytes = path.front()->geometry().chunk(chunk).bytes;
  if (base_bytes == bytes && target_bytes == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rebuild the chunk: the chunk has ", bytes,
                                                 " bytes, but the base's memory has ", base_bytes,
                                                 " bytes and the target's memory has ", target_bytes,
                                                 " bytes; pass memory of the chunk's size for both"));
}

// Elements of one width, in a part of a chunk.
struct Elements {
  uint64_t first = 0;  // in the chunk
  uint64_t count = 0;
  uint64_t end() const { return first + count; }
};

// Goes through a record front to back, and changes elements. Each call goes on where the previous one ended:
// a sparse record remembers the next element that changes, a bitmap its next step, and all modes their next
// value. The streams must be those that RecordReader has checked.
class RecordCursor {
 public:
  explicit RecordCursor(const RecordStreams& streams)
      : streams_(streams),
        gap_(streams.positions.data()),
        step_(streams.steps.data()),
        value_(streams.values.data()) {
    if (streams_.mode == RecordMode::kSparse) next_ = TakeGap(gap_);
  }

  // Changes the next elements, which are at `bytes`.
  template <typename U>
  void Apply(const Elements& elements, uint8_t* bytes) {
    switch (streams_.mode) {
      case RecordMode::kSparse:
        return ApplySparse<U>(elements, bytes);
      case RecordMode::kBitmap:
        return ApplyBitmap<U>(elements, bytes);
      default:
        return ApplyDense<U>(elements, bytes);
    }
  }

  // Whether the values were as many as the steps asked for.
  bool Complete() const { return !lacks_values_ && value_ == End(streams_.values); }

 private:
  static const uint8_t* End(std::span<const uint8_t> bytes) { return bytes.data() + bytes.size(); }

  template <typename U>
  void Change(uint8_t* element, uint8_t step) {
    if (step == kEscapedStep) return Escaped<U>(element);
    StoreElement<U>(element, TakeOneStep<U>(LoadElement<U>(element), step));
  }
  template <typename U>
  void Escaped(uint8_t* element) {
    // Noted rather than returned, which keeps the loops free of errors. The element stays wrong, and the
    // caller gives the chunk up at the end (Complete).
    if (static_cast<size_t>(End(streams_.values) - value_) < sizeof(U)) {
      lacks_values_ = true;
      return;
    }
    std::memcpy(element, value_, sizeof(U));
    value_ += sizeof(U);
  }

  template <typename U>
  void ApplySparse(const Elements& elements, uint8_t* bytes) {
    const uint64_t end = elements.end();
    // Local copies, since the compiler cannot keep members in registers while bytes are written.
    const uint8_t* const last_step = End(streams_.steps) - 1;
    const uint8_t* step = step_;
    const uint8_t* gap = gap_;
    uint64_t next = next_;
    while (next < end) {
      Change<U>(bytes + (next - elements.first) * sizeof(U), *step);
      if (step++ == last_step) {
        // The gaps are used up: there is none to read after the last step.
        next = kNoElement;
        break;
      }
      next += TakeGap(gap) + 1;
    }
    step_ = step;
    gap_ = gap;
    next_ = next;
  }

  template <typename U>
  void ApplyBitmap(const Elements& elements, uint8_t* bytes) {
    // Parts begin at multiples of kTensorAlignment, where an element's bit is the first of a byte. They end
    // there, too, so the last byte has no bit of the next part.
    const uint8_t* const bits = streams_.positions.data() + elements.first / 8;
    for (uint64_t byte = 0; byte * 8 < elements.count; ++byte) {
      for (uint32_t left = bits[byte]; left != 0; left &= left - 1) {
        const uint64_t element = byte * 8 + static_cast<uint64_t>(std::countr_zero(left));
        Change<U>(bytes + element * sizeof(U), *step_++);
      }
    }
  }

  template <typename U>
  void ApplyDense(const Elements& elements, uint8_t* bytes) {
    const uint8_t* const steps = streams_.steps.data() + elements.first;
    // A loop without branches, which compilers turn into wide instructions. The escaped elements take a wrong
    // step in it; the second loop writes their values over them.
    for (uint64_t i = 0; i < elements.count; ++i) {
      uint8_t* const element = bytes + i * sizeof(U);
      StoreElement<U>(element, TakeStep<U>(LoadElement<U>(element), steps[i]));
    }
    const uint8_t* const end = steps + elements.count;
    for (const uint8_t* escaped = steps; (escaped = std::find(escaped, end, kEscapedStep)) != end;
         ++escaped) {
      Escaped<U>(bytes + static_cast<size_t>(escaped - steps) * sizeof(U));
    }
  }

  static constexpr uint64_t kNoElement = ~uint64_t{0};

  RecordStreams streams_;
  const uint8_t* gap_ = nullptr;  // of kSparse
  uint64_t next_ = 0;             // the next element that changes, of kSparse
  const uint8_t* step_ = nullptr;
  const uint8_t* value_ = nullptr;
  bool lacks_values_ = false;
};

// Calls `visit` with the elements that a record of gaps changes, as byte offsets in the chunk. `offsets` is
// memory to use.
void VisitGaps(const RecordStreams& streams, std::span<const ElementRun> runs, std::vector<uint32_t>& offsets,
               absl::FunctionRef<void(const ChangedElements&)> visit) {
  offsets.resize(kVisitedAtOnce);
  size_t count = 0;
  auto run = runs.begin();
  uint64_t run_end = run->bytes / run->width;  // these two: elements of the chunk
  uint64_t element = 0;
  uint64_t begin = run->offset;  // the byte where element 0 would be if all had the width of this run
  const auto flush = [&] {
    if (count > 0) visit({.width = run->width, .offsets = std::span(offsets).first(count)});
    count = 0;
  };
  for (const uint8_t gap : streams.positions) {
    element += gap;
    if (gap == kLongGap) continue;
    // The elements of a call have one width, so what was collected is visited where the run ends.
    while (element >= run_end) {
      flush();
      ++run;
      begin = run->offset - run_end * run->width;  // may wrap around; the sums do not
      run_end += run->bytes / run->width;
    }
    offsets[count++] = static_cast<uint32_t>(begin + element * run->width);
    if (count == kVisitedAtOnce) flush();
    ++element;
  }
  flush();
}

// Sets the bits of the elements that a record changes. Several records of a path set theirs in one bitmap, so
// that an element that two of them change is visited once.
void MarkElements(const RecordStreams& streams, std::span<uint8_t> bits) {
  const auto set = [bits](uint64_t element) { bits[element / 8] |= static_cast<uint8_t>(1u << element % 8); };
  switch (streams.mode) {
    case RecordMode::kSparse: {
      uint64_t element = 0;
      for (const uint8_t gap : streams.positions) {
        element += gap;
        if (gap != kLongGap) set(element++);
      }
      break;
    }
    case RecordMode::kBitmap:
      for (size_t i = 0; i < streams.positions.size(); ++i) bits[i] |= streams.positions[i];
      break;
    default:
      for (size_t element = 0; element < streams.steps.size(); ++element) {
        if (streams.steps[element] != 0) set(element);
      }
  }
}

}  // namespace

// A path of differences is applied step by step. Rebuild copies up to kStepBytes of the base to a buffer,
// lets each record of the path change the elements there, digests the buffer, and writes it to the target
// while it reads the next step.
// RecordReader has checked by then that all positions lie inside the chunk, so a cursor writes without
// checks. What stays unchecked until the end is only whether there were as many values as steps 255; wrong
// bytes are found by the target's digest.
struct ChunkRebuilder::State {
  ChunkRecords records;
  std::vector<RecordCursor> cursors;  // one for each record
  ByteBuffer marks;
  std::vector<uint32_t> offsets;
  alignas(64) std::array<std::array<std::byte, kStepBytes>, 2> steps;

  absl::Status Rebuild(DecoderPath path, uint32_t chunk, std::span<const std::span<const std::byte>> base,
                       std::span<const std::span<std::byte>> target, DigestBuilder* digest);
};

absl::Status ChunkRebuilder::State::Rebuild(DecoderPath path, uint32_t chunk,
                                            std::span<const std::span<const std::byte>> base,
                                            std::span<const std::span<std::byte>> target,
                                            DigestBuilder* digest) {
  const auto bytes_of = [](auto pieces) {
    uint64_t bytes = 0;
    for (const auto& piece : pieces) bytes += piece.size();
    return bytes;
  };
  TC_RETURN_IF_ERROR(CheckSizes(path, chunk, bytes_of(base), bytes_of(target)));
  TC_RETURN_IF_ERROR(records.Read(path, chunk));
  cursors.clear();
  for (const RecordStreams& streams : records.streams()) cursors.emplace_back(streams);
  auto run = records.runs().begin();
  uint64_t offset = 0;
  uint64_t element = 0;
  // The step that was made last is written while the next one is read (ReadAndStream).
  size_t turn = 0;
  std::span<const std::byte> made;
  std::byte* made_for = nullptr;
  ZipPieces(base, target, [&](std::span<const std::byte> from, std::span<std::byte> to) {
    while (!from.empty()) {
      if (offset == run->offset + run->bytes) ++run;
      const size_t bytes = std::min<uint64_t>({kStepBytes, from.size(), run->offset + run->bytes - offset});
      const Elements elements_here{element, bytes / run->width};
      std::byte* const step = steps[turn ^= 1].data();
      // Through a buffer also where nothing changes: base and target may be the same memory, and each step is
      // read before it is written.
      ReadAndStream(step, from.first(bytes), made_for, made);
      WithElementType(run->width, [&]<typename U>(U) {
        for (RecordCursor& cursor : cursors) {
          cursor.template Apply<U>(elements_here, reinterpret_cast<uint8_t*>(step));
        }
      });
      made = std::span(step, bytes);
      made_for = to.data();
      if (digest != nullptr) digest->Update(made);
      offset += bytes;
      element += elements_here.count;
      from = from.subspan(bytes);
      to = to.subspan(bytes);
    }
  });
  StreamingCopy(made_for, made);
  return std::ranges::all_of(cursors, &RecordCursor::Complete) ? absl::OkStatus() : WrongNumberOfValues();
}

ChunkRebuilder::ChunkRebuilder() : state_(std::make_unique<State>()) {}
ChunkRebuilder::~ChunkRebuilder() = default;

absl::Status ChunkRebuilder::Rebuild(DecoderPath path, uint32_t chunk,
                                     std::span<const std::span<std::byte>> base,
                                     std::span<const std::span<std::byte>> target, DigestBuilder* digest) {
  const std::vector<std::span<const std::byte>> read_only(base.begin(), base.end());
  return state_->Rebuild(path, chunk, read_only, target, digest);
}

absl::Status ChunkRebuilder::Rebuild(DecoderPath path, uint32_t chunk, std::span<const std::byte> base,
                                     std::span<std::byte> target, DigestBuilder* digest) {
  return state_->Rebuild(path, chunk, std::span(&base, 1), std::span(&target, 1), digest);
}

absl::Status ChunkRebuilder::VisitChanges(DecoderPath path, uint32_t chunk,
                                          absl::FunctionRef<void(const ChangedElements&)> visit) {
  State& state = *state_;
  TC_RETURN_IF_ERROR(state.records.Read(path, chunk));
  const std::span<const RecordStreams> records = state.records.streams();
  if (records.empty()) return absl::OkStatus();
  // One sparse record is in order by itself and needs no bitmap.
  if (records.size() == 1 && records.front().mode == RecordMode::kSparse) {
    VisitGaps(records.front(), state.records.runs(), state.offsets, visit);
    return absl::OkStatus();
  }
  const size_t bytes = BitmapBytes(state.records.elements());
  state.marks.Clear();
  std::memset(state.marks.Room(bytes), 0, bytes);
  state.marks.Commit(bytes);
  const std::span<uint8_t> bits = state.marks.mutable_bytes();
  for (const RecordStreams& record : records) MarkElements(record, bits);
  uint64_t first = 0;
  for (const ElementRun& run : state.records.runs()) {
    state.offsets.clear();
    const auto flush = [&] {
      if (!state.offsets.empty()) visit({.width = run.width, .offsets = state.offsets});
      state.offsets.clear();
    };
    const uint64_t count = run.bytes / run.width;
    // Runs are multiples of kTensorAlignment long: whole words of 32 elements.
    for (uint64_t begin = 0; begin < count; begin += 32) {
      for (uint32_t left = LoadElement<uint32_t>(&bits[(first + begin) / 8]); left != 0; left &= left - 1) {
        const uint64_t element = begin + static_cast<uint64_t>(std::countr_zero(left));
        state.offsets.push_back(static_cast<uint32_t>(run.offset + element * run.width));
      }
      if (state.offsets.size() >= kVisitedAtOnce) flush();
    }
    flush();
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
