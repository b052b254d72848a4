#include "core/ingest/scatter_plan.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint32_t);
constexpr uint64_t kBlockWords = uint64_t{1} << 16;  // a place in a block has 16 bits
constexpr uint64_t kBlockBytes = kBlockWords * kWordBytes;
// More take as much room as half of the block, and are slower to write than all of it.
constexpr uint64_t kMaxChanges = kBlockWords / 3;
// One thread writes faster than it can be started for less.
constexpr uint64_t kMinBytesPerThread = uint64_t{1} << 20;

template <class T>
std::span<const std::byte> BytesOf(const std::unique_ptr<T[]>& values, uint64_t count) {
  return std::as_bytes(std::span<const T>(values.get(), count));
}

uint64_t LoadTwoWords(const std::byte* at) {
  uint64_t words;
  std::memcpy(&words, at, sizeof(words));
  return words;
}

uint32_t LoadWord(const std::byte* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

}  // namespace

// The changes of one block, while they are found.
// A word is written into the arrays before it is known to differ, and counted only if it does, so that a pair
// of words with a difference costs no further branch.
struct ScatterPlan::Encoder {
  // False: there are too many.
  bool Compare(std::span<const std::byte> there, std::span<const std::byte> wanted) {
    count = 0;
    uint64_t at = 0;
    for (; at + 2 * kWordBytes <= wanted.size(); at += 2 * kWordBytes) {
      if (LoadTwoWords(&there[at]) == LoadTwoWords(&wanted[at])) continue;
      if (count + 2 > kMaxChanges) return false;
      Note(there, wanted, at);
      Note(there, wanted, at + kWordBytes);
    }
    if (at + kWordBytes <= wanted.size()) {
      Note(there, wanted, at);
      at += kWordBytes;
    }
    // Less than a word, at the end of an image of an odd size.
    return std::memcmp(there.data() + at, wanted.data() + at, wanted.size() - at) == 0;
  }
  void Note(std::span<const std::byte> there, std::span<const std::byte> wanted, uint64_t at) {
    const uint32_t word = LoadWord(&wanted[at]);
    places[count] = static_cast<uint16_t>(at / kWordBytes);
    values[count] = word;
    count += LoadWord(&there[at]) != word ? 1 : 0;
  }

  // With room for the one that Note writes and does not count.
  const std::unique_ptr<uint16_t[]> places = std::make_unique_for_overwrite<uint16_t[]>(kMaxChanges + 2);
  const std::unique_ptr<uint32_t[]> values = std::make_unique_for_overwrite<uint32_t[]>(kMaxChanges + 2);
  uint64_t count = 0;
};

// Each block is kept in one of two forms (Write reads them): `values` then `places` of the words that differ,
// or all bytes of the block. A block without a difference takes nothing.
absl::Status ScatterPlan::Add(uint64_t offset, std::span<const std::byte> there,
                              std::span<const std::byte> wanted) {
  CHECK_EQ(there.size(), wanted.size());
  Encoder encoder;
  for (uint64_t done = 0; done < wanted.size(); done += kBlockBytes) {
    const uint64_t bytes = std::min<uint64_t>(kBlockBytes, wanted.size() - done);
    const auto from = there.subspan(done, bytes);
    const auto to = wanted.subspan(done, bytes);
    Block block{.offset = offset + done, .bytes = static_cast<uint32_t>(bytes)};
    if (!encoder.Compare(from, to)) {
      TC_RETURN_IF_ERROR(Keep(block, to, {}));
    } else if (encoder.count > 0) {
      block.words = static_cast<uint32_t>(encoder.count);
      TC_RETURN_IF_ERROR(
          Keep(block, BytesOf(encoder.values, encoder.count), BytesOf(encoder.places, encoder.count)));
    }
  }
  return absl::OkStatus();
}

absl::Status ScatterPlan::Keep(Block block, std::span<const std::byte> first,
                               std::span<const std::byte> second) {
  const uint64_t bytes = first.size() + second.size();
  std::byte* place = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (free_.size() < bytes) {
      TC_ASSIGN_OR_RETURN(HostAllocation more, allocate_(kGranuleBytes));
      free_ = more.Spans(0, kGranuleBytes).front();
      memory_.push_back(std::move(more));
    }
    place = free_.data();
    // Values are read as words.
    free_ = free_.subspan(std::min<uint64_t>(free_.size(), (bytes + kWordBytes - 1) & ~(kWordBytes - 1)));
    kept_bytes_ += bytes;
    block.kept = place;
    blocks_.push_back(block);
  }
  std::ranges::copy(first, place);
  std::ranges::copy(second, place + first.size());
  return absl::OkStatus();
}

void ScatterPlan::Write(const Block& block, std::byte* place) {
  if (block.words == 0) {
    std::memcpy(place, block.kept, block.bytes);
    return;
  }
  const std::byte* const places = block.kept + block.words * kWordBytes;
  for (uint32_t i = 0; i < block.words; ++i) {
    uint16_t word;
    std::memcpy(&word, places + i * sizeof(word), sizeof(word));
    std::memcpy(place + word * kWordBytes, block.kept + i * kWordBytes, kWordBytes);
  }
}

// Blocks do not overlap, so the threads share only the counter. The caller made sure that no process reads
// the image now; the helpers end with this function, which is before the image counts as the new version.
void ScatterPlan::Scatter(const HostAllocation& image, int threads) const {
  absl::MutexLock lock(&mutex_);
  const std::span<const Block> blocks = blocks_;
  std::atomic<size_t> next = 0;
  const auto write = [&] {
    for (size_t i = next++; i < blocks.size(); i = next++) {
      const std::vector<HostSpan> spans = image.Spans(blocks[i].offset, blocks[i].bytes);
      CHECK_EQ(spans.size(), 1u) << "a block that was one piece";
      Write(blocks[i], spans.front().data());
    }
  };
  std::vector<std::jthread> helpers;
  const auto useful = static_cast<int>(kept_bytes_ / kMinBytesPerThread);
  for (int i = 1; i < std::min(threads, useful); ++i) {
    try {
      helpers.emplace_back(write);
    } catch (const std::system_error& error) {
      LOG(WARNING) << "write changed values: not all threads can be started (" << error.what()
                   << "); raise the limit of threads (`ulimit -u`)";
      break;
    }
  }
  write();
}

// The device reads values and places where they are kept. A rehearsal gives it the same work on blocks
// without elements, of which it changes none.
absl::Status ScatterPlan::Enqueue(Stream& stream, DevicePtr image, bool writes) const {
  absl::MutexLock lock(&mutex_);
  std::vector<ElementChanges> changes;
  for (const Block& block : blocks_) {
    const DevicePtr begin = image + block.offset;
    if (block.words > 0) {
      const auto* const places = reinterpret_cast<const uint16_t*>(block.kept + block.words * kWordBytes);
      changes.push_back({.begin = begin,
                         .elements = writes ? static_cast<uint32_t>(block.bytes / kWordBytes) : 0,
                         .width = kWordBytes,
                         .kind = ElementChanges::Kind::kValues,
                         .places = {places, block.words},
                         .operands = block.kept});
    } else if (writes) {
      TC_RETURN_IF_ERROR(stream.CopyToDevice(begin, block.kept, block.bytes));
    }
  }
  return changes.empty() ? absl::OkStatus() : stream.Change(changes);
}

uint64_t ScatterPlan::kept_bytes() const {
  absl::MutexLock lock(&mutex_);
  return kept_bytes_;
}

}  // namespace tensorcast
