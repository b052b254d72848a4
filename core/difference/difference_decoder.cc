#include "core/difference/difference_decoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/difference/byte_buffer.h"
#include "core/difference/difference_index.h"
#include "core/difference/element_order.h"
#include "core/difference/pieces.h"
#include "core/difference/record.h"

namespace tensorcast {
namespace {

// Changed at a time, between the base and the target: two steps stay in the first cache levels. In smaller
// steps BLAKE3 is slower (README.md). A multiple of kTensorAlignment.
constexpr size_t kStepBytes = size_t{16} << 10;
constexpr size_t kVisitedAtOnce = 4096;

// A path of differences is applied step by step. Rebuild copies up to kStepBytes of the base to a buffer,
// lets each record of the path change the elements there, digests the buffer, and writes it to the target
// while it reads the next step.
// RecordReader has checked by then that all positions lie inside the chunk, so a cursor writes without
// checks. What stays unchecked until the end is only whether there were as many values as steps 255; wrong
// bytes are found by the target's digest.
absl::Status Refuse(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("open a difference: ", what, "; pull the whole target"));
}

absl::Status CheckSizes(DecoderPath path, uint32_t chunk, uint64_t base_bytes, uint64_t target_bytes) {
  const uint64_t bytes = path.front()->geometry().chunk(chunk).bytes;
  if (base_bytes == bytes && target_bytes == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rebuild the chunk: the chunk has ", bytes, " bytes, but the base gave ", base_bytes,
                   " bytes and the target ", target_bytes, " bytes; pass all bytes of the chunk"));
}

// The errors of a chunk do not name its number: the callers do.
absl::Status CheckGeometry(DecoderPath path) {
  DCHECK(!path.empty());
  for (const DifferenceDecoder* const difference : path) {
    if (difference == path.front() || difference->geometry() == path.front()->geometry()) continue;
    return absl::InvalidArgumentError(
        "rebuild the chunk: the differences are not of images of one layout; pull the whole target");
  }
  return absl::OkStatus();
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
  RecordCursor() = default;
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

  // The unchanged elements up to the next change; moves `gap` past them. A checked stream does not end in a
  // long gap.
  static uint64_t TakeGap(const uint8_t*& gap) {
    uint64_t elements = 0;
    for (; *gap == kLongGap; ++gap) elements += kLongGap;
    return elements + *gap++;
  }

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

absl::StatusOr<DifferenceDecoder> DifferenceDecoder::Open(const ImageLayout& layout,
                                                          std::span<const std::span<std::byte>> image,
                                                          DifferenceGeometry target) {
  if (layout.tensors.size() != 2) return Refuse("the layout is not that of an index and records");
  const Tensor& index_tensor = layout.tensors[0];
  const Tensor& records_tensor = layout.tensors[1];
  DifferenceDecoder decoder;
  uint64_t bytes = 0;
  for (const std::span<std::byte> piece : image) {
    bytes += piece.size();
    decoder.image_.emplace_back(piece);
  }
  if (bytes < layout.image_bytes) {
    return Refuse(absl::StrCat("the image has ", bytes, " bytes, but its layout needs ", layout.image_bytes));
  }
  std::vector<std::byte> gathered;
  const auto index_bytes = decoder.Bytes({index_tensor.offset, index_tensor.nbytes}, gathered);
  TC_ASSIGN_OR_RETURN(DifferenceIndex index,
                      DecodeIndex({reinterpret_cast<const char*>(index_bytes.data()), index_bytes.size()},
                                  target, records_tensor.nbytes));
  decoder.geometry_ = std::make_shared<const DifferenceGeometry>(std::move(target));
  decoder.modes_ = std::move(index.modes);
  // The index gives sizes alone. DecodeIndex has compared their sum with the tensor, so no record lies
  // outside of it.
  uint64_t begin = records_tensor.offset;
  for (const uint32_t record_bytes : index.record_bytes) {
    decoder.record_begins_.push_back(begin);
    begin += record_bytes;
  }
  decoder.record_begins_.push_back(begin);
  return decoder;
}

ByteRange DifferenceDecoder::record(uint32_t chunk) const {
  DCHECK_LT(chunk, modes_.size());
  return {record_begins_[chunk], record_begins_[chunk + 1] - record_begins_[chunk]};
}

std::span<const std::byte> DifferenceDecoder::RecordBytes(uint32_t chunk,
                                                          std::vector<std::byte>& gathered) const {
  return Bytes(record(chunk), gathered);
}

std::span<const std::byte> DifferenceDecoder::Bytes(ByteRange range, std::vector<std::byte>& gathered) const {
  // Bytes that lie in one piece are used in place. Only what crosses pieces is copied.
  gathered.clear();
  for (std::span<const std::byte> piece : image_) {
    if (range.offset >= piece.size()) {
      range.offset -= piece.size();
      continue;
    }
    piece = piece.subspan(range.offset);
    if (gathered.empty() && piece.size() >= range.bytes) return piece.first(range.bytes);
    piece = piece.first(std::min<uint64_t>(piece.size(), range.bytes));
    gathered.insert(gathered.end(), piece.begin(), piece.end());
    range = {0, range.bytes - piece.size()};
    if (range.bytes == 0) break;
  }
  return gathered;
}

RecordMode ModeOf(DecoderPath path, uint32_t chunk) {
  RecordMode mode = RecordMode::kSame;
  for (const DifferenceDecoder* const difference : path) {
    const RecordMode own = difference->mode(chunk);
    if (own == RecordMode::kWhole) return own;
    if (own != RecordMode::kSame) mode = own;
  }
  return mode;
}

struct ChunkRebuilder::State {
  // The memory that one difference of the path needs, kept for the next chunk.
  struct Part {
    RecordReader reader;
    std::vector<std::byte> gathered;
    RecordCursor cursor;
  };
  std::vector<Part> parts;  // the first `used` are of the path at hand
  size_t used = 0;
  std::vector<ElementRun> runs;
  uint64_t elements = 0;  // of the chunk
  ByteBuffer marks;
  std::vector<uint32_t> offsets;
  alignas(64) std::array<std::array<std::byte, kStepBytes>, 2> steps;

  // Reads the path's records of the chunk, and calls use(part, streams) for each.
  template <typename Use>
  absl::Status ReadRecords(DecoderPath path, uint32_t chunk, const Use& use);
  absl::Status Rebuild(DecoderPath path, uint32_t chunk, std::span<const std::span<const std::byte>> base,
                       std::span<const std::span<std::byte>> target, DigestBuilder* digest);
};

template <typename Use>
absl::Status ChunkRebuilder::State::ReadRecords(DecoderPath path, uint32_t chunk, const Use& use) {
  TC_RETURN_IF_ERROR(CheckGeometry(path));
  const DifferenceGeometry& geometry = path.front()->geometry();
  const uint64_t chunk_bytes = geometry.chunk(chunk).bytes;
  runs = geometry.RunsOf(chunk);
  elements = 0;
  for (const ElementRun& run : runs) elements += run.bytes / run.width;
  if (ModeOf(path, chunk) == RecordMode::kWhole) {
    return absl::FailedPreconditionError(
        "rebuild the chunk: a difference has no record of the chunk; pull the whole chunk");
  }
  used = 0;
  for (const DifferenceDecoder* const difference : path) {
    if (difference->mode(chunk) == RecordMode::kSame) continue;
    // A reader's buffers hold its streams, so each record of the path has its own. They are kept for the next
    // chunk.
    if (parts.size() == used) parts.emplace_back();
    Part& part = parts[used++];
    TC_ASSIGN_OR_RETURN(
        const RecordStreams streams,
        part.reader.Read(difference->mode(chunk), difference->RecordBytes(chunk, part.gathered), elements,
                         chunk_bytes));
    use(part, streams);
  }
  return absl::OkStatus();
}

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
  TC_RETURN_IF_ERROR(ReadRecords(
      path, chunk, [](Part& part, const RecordStreams& streams) { part.cursor = RecordCursor(streams); }));
  const std::span<Part> active = std::span(parts).first(used);
  auto run = runs.begin();
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
        for (Part& part : active) {
          part.cursor.template Apply<U>(elements_here, reinterpret_cast<uint8_t*>(step));
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
  if (std::ranges::all_of(active, [](const Part& part) { return part.cursor.Complete(); })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "rebuild the chunk: a record of the difference has too few or too many values for its steps; pull the "
      "whole chunk");
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
  TC_RETURN_IF_ERROR(CheckGeometry(path));
  State& state = *state_;
  std::optional<std::span<uint8_t>> bits;
  const auto changes_it = [chunk](const DifferenceDecoder* one) {
    return one->mode(chunk) != RecordMode::kSame;
  };
  // One sparse record is in order by itself and needs no bitmap.
  const bool one_record = std::ranges::count_if(path, changes_it) == 1;
  TC_RETURN_IF_ERROR(state.ReadRecords(path, chunk, [&](State::Part&, const RecordStreams& streams) {
    if (one_record && streams.mode == RecordMode::kSparse) {
      return VisitGaps(streams, state.runs, state.offsets, visit);
    }
    if (!bits.has_value()) {
      const size_t bytes = BitmapBytes(state.elements);
      state.marks.Clear();
      std::memset(state.marks.Room(bytes), 0, bytes);
      state.marks.Commit(bytes);
      bits = state.marks.mutable_bytes();
    }
    MarkElements(streams, *bits);
  }));
  // Either VisitGaps has visited them, or nothing changed.
  if (!bits.has_value()) return absl::OkStatus();
  uint64_t first = 0;
  for (const ElementRun& run : state.runs) {
    state.offsets.clear();
    const auto flush = [&] {
      if (!state.offsets.empty()) visit({.width = run.width, .offsets = state.offsets});
      state.offsets.clear();
    };
    const uint64_t count = run.bytes / run.width;
    // Runs are multiples of kTensorAlignment long: whole words of 32 elements.
    for (uint64_t begin = 0; begin < count; begin += 32) {
      for (uint32_t left = LoadElement<uint32_t>(&(*bits)[(first + begin) / 8]); left != 0;
           left &= left - 1) {
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
