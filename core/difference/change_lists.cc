#include "core/difference/change_lists.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "base/status.h"
#include "core/difference/chunk_records.h"
#include "core/difference/element_order.h"
#include "core/difference/element_runs.h"
#include "core/difference/record.h"

namespace tensorcast {
namespace {

// Where a list or its operands begin: fits every width.
constexpr size_t kAlignment = 8;
// The gaps before the four parts of a block's two lists.
constexpr size_t kMaxGaps = 4 * (kAlignment - 1);
static_assert(kMaxGaps + sizeof(uint16_t) + sizeof(uint64_t) <= ChangeLists::kMinRoomBytes);

// The changed elements of a record, one after another. The streams must be those that RecordReader has
// checked.
class ChangedWalk {
 public:
  explicit ChangedWalk(const RecordStreams& streams) : streams_(streams) {
    switch (streams_.mode) {
      case RecordMode::kSparse:
        gap_ = streams_.positions.data();
        element_ = TakeGap(gap_);
        break;
      case RecordMode::kBitmap:
        left_ = Word(0);
        FindBit();
        break;
      default:
        FindStep();
    }
  }

  static constexpr uint64_t kNone = ~uint64_t{0};

  uint64_t element() const { return element_; }  // kNone: at the end
  uint8_t step() const { return streams_.steps[step_]; }

  void Advance() {
    ++step_;
    switch (streams_.mode) {
      case RecordMode::kSparse:
        // There is a gap for each step, and none to read after the last one.
        element_ = step_ == streams_.steps.size() ? kNone : element_ + TakeGap(gap_) + 1;
        break;
      case RecordMode::kBitmap:
        left_ &= left_ - 1;
        FindBit();
        break;
      default:
        FindStep();
    }
  }

 private:
  // A chunk has whole words of 32 elements, because its runs are multiples of kTensorAlignment long.
  static constexpr size_t kWordBytes = sizeof(uint32_t);

  uint32_t Word(size_t word) const { return LoadElement<uint32_t>(&streams_.positions[word * kWordBytes]); }
  void FindBit() {
    while (left_ == 0) {
      if (++word_ == streams_.positions.size() / kWordBytes) {
        element_ = kNone;
        return;
      }
      left_ = Word(word_);
    }
    element_ = word_ * 32 + static_cast<uint64_t>(std::countr_zero(left_));
  }
  void FindStep() {
    const auto found = std::find_if(streams_.steps.begin() + static_cast<ptrdiff_t>(step_),
                                    streams_.steps.end(), [](uint8_t step) { return step != 0; });
    step_ = static_cast<size_t>(found - streams_.steps.begin());
    element_ = found == streams_.steps.end() ? kNone : step_;
  }

  RecordStreams streams_;
  uint64_t element_ = kNone;
  size_t step_ = 0;
  const uint8_t* gap_ = nullptr;  // of kSparse
  size_t word_ = 0;               // of kBitmap, as `left_`: its bits that were not visited
  uint32_t left_ = 0;
};

// Copies one part after another to the front of the caller's memory.
class Room {
 public:
  explicit Room(std::span<std::byte> room) : begin_(room.data()), next_(begin_), end_(begin_ + room.size()) {}

  size_t free() const { return static_cast<size_t>(end_ - next_); }
  size_t used() const { return static_cast<size_t>(next_ - begin_); }
  // REQUIRES: free() is at least the size of `part` and a gap.
  template <typename T>
  T* Put(std::span<const T> part) {
    const auto misplaced = reinterpret_cast<uintptr_t>(next_) % kAlignment;
    std::byte* const at = next_ + (misplaced == 0 ? 0 : kAlignment - misplaced);
    if (!part.empty()) std::memcpy(at, part.data(), part.size_bytes());
    next_ = at + part.size_bytes();
    return reinterpret_cast<T*>(at);
  }

 private:
  std::byte* const begin_;
  std::byte* next_;
  std::byte* const end_;
};

}  // namespace

struct ChangeLists::State {
  ChunkRecords records;
  size_t record = 0;  // the one at hand
  std::optional<ChangedWalk> walk;
  std::span<const uint8_t> values;  // the rest of the record's values
  size_t run = 0;                   // with the next element
  uint64_t run_first = 0;           // its first element in the chunk
  std::vector<ChangeList> lists;
  // Of a block, collected before it is known how many there are.
  std::vector<uint16_t> step_places;
  std::vector<uint8_t> steps;
  std::vector<uint16_t> value_places;

  bool done() const { return record == records.streams().size(); }
  void BeginRecord();
  absl::StatusOr<bool> PutBlock(Room& room);
};

void ChangeLists::State::BeginRecord() {
  if (done()) return;
  const RecordStreams& streams = records.streams()[record];
  walk.emplace(streams);
  values = streams.values;
  run = 0;
  run_first = 0;
}

// False if no list fits. A block begins at a changed element, and ends after kBlockElements, with its run, or
// where the room does.
absl::StatusOr<bool> ChangeLists::State::PutBlock(Room& room) {
  const uint64_t first = walk->element();
  const auto run_elements = [this] { return records.runs()[run].bytes / records.runs()[run].width; };
  while (first >= run_first + run_elements()) {
    run_first += run_elements();
    ++run;
  }
  const uint32_t width = records.runs()[run].width;
  const uint64_t end = std::min<uint64_t>(first + kBlockElements, run_first + run_elements());
  step_places.clear();
  steps.clear();
  value_places.clear();
  size_t left = room.free() - std::min(room.free(), kMaxGaps);
  for (; walk->element() < end; walk->Advance()) {
    const uint8_t step = walk->step();
    const bool escaped = step == kEscapedStep;
    const size_t bytes = sizeof(uint16_t) + (escaped ? width : sizeof(step));
    if (bytes > left) break;
    left -= bytes;
    const auto place = static_cast<uint16_t>(walk->element() - first);
    if (escaped) {
      value_places.push_back(place);
    } else {
      step_places.push_back(place);
      steps.push_back(step);
    }
  }
  const size_t value_bytes = value_places.size() * width;
  if (value_bytes > values.size()) return WrongNumberOfValues();
  ChangeList list = {.offset = records.runs()[run].offset + (first - run_first) * width,
                     .elements = static_cast<uint32_t>(end - first),
                     .width = width};
  const auto put = [&](std::span<const uint16_t> places, std::span<const uint8_t> operands) {
    if (places.empty()) return;
    list.operands = reinterpret_cast<const std::byte*>(room.Put(operands));
    list.places = {room.Put(places), places.size()};
    lists.push_back(list);
  };
  // The record has the values in the order of their elements.
  put(value_places, values.first(value_bytes));
  values = values.subspan(value_bytes);
  list.steps = true;
  put(step_places, steps);
  return !(value_places.empty() && step_places.empty());
}

ChangeLists::ChangeLists() : state_(std::make_unique<State>()) {}
ChangeLists::~ChangeLists() = default;

absl::Status ChangeLists::Begin(DecoderPath path, uint32_t chunk) {
  state_->lists.clear();
  TC_RETURN_IF_ERROR(state_->records.Read(path, chunk));
  state_->record = 0;
  state_->BeginRecord();
  return absl::OkStatus();
}

absl::StatusOr<ChangeLists::Part> ChangeLists::Next(std::span<std::byte> room) {
  State& state = *state_;
  Room out(room);
  state.lists.clear();
  bool fits = true;
  while (fits && state.walk->element() != ChangedWalk::kNone) {
    TC_ASSIGN_OR_RETURN(fits, state.PutBlock(out));
  }
  if (state.walk->element() == ChangedWalk::kNone) {
    if (!state.values.empty()) return WrongNumberOfValues();
    ++state.record;
    state.BeginRecord();
  }
  return Part{.lists = state.lists, .bytes = out.used()};
}

bool ChangeLists::done() const { return state_->done(); }

}  // namespace tensorcast
