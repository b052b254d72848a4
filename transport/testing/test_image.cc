#include "transport/testing/test_image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/log/check.h"

namespace tensorcast::transport {
namespace {

constexpr absl::Duration kGuard = absl::Minutes(1);

uint64_t PatternWord(uint64_t index) {
  uint64_t word = index + 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  return word ^ (word >> 27);
}

// Calls f(memory bytes, pattern bytes, count) for the stretches of `memory` that one pattern word covers.
template <typename F>
bool ForEachWord(uint64_t image_offset, uint64_t bytes, F f) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t at = image_offset + done;
    const uint64_t word = PatternWord(at / 8);
    const uint64_t count = std::min<uint64_t>(8 - at % 8, bytes - done);
    if (!f(done, reinterpret_cast<const char*>(&word) + at % 8, count)) return false;
    done += count;
  }
  return true;
}

}  // namespace

TestMemory::TestMemory(uint64_t bytes) : bytes_(bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PCHECK(mapped != MAP_FAILED);
  data_ = static_cast<std::byte*>(mapped);
}

TestMemory::~TestMemory() { munmap(data_, bytes_); }

void WritePattern(HostSpan memory, uint64_t image_offset) {
  ForEachWord(image_offset, memory.size(), [&](uint64_t at, const char* pattern, uint64_t count) {
    std::memcpy(memory.data() + at, pattern, count);
    return true;
  });
}

bool HoldsPattern(ConstHostSpan memory, uint64_t image_offset) {
  return ForEachWord(image_offset, memory.size(), [&](uint64_t at, const char* pattern, uint64_t count) {
    return std::memcmp(memory.data() + at, pattern, count) == 0;
  });
}

bool HoldsOnly(ConstHostSpan memory, std::byte value) {
  return std::all_of(memory.begin(), memory.end(), [value](std::byte byte) { return byte == value; });
}

std::vector<HostSpan> Fragment(HostSpan memory, uint64_t longest) {
  std::vector<HostSpan> spans;
  for (HostSpan half : {memory.subspan(memory.size() / 2), memory.first(memory.size() / 2)}) {
    for (uint64_t i = 0; !half.empty(); ++i) {
      const uint64_t wanted = (PatternWord(i) % longest) | 1;
      const uint64_t count = std::min<uint64_t>(wanted, half.size());
      spans.push_back(half.first(count));
      half = half.subspan(count);
    }
  }
  return spans;
}

std::vector<HostSpan> Slice(const std::vector<HostSpan>& spans, uint64_t offset, uint64_t bytes) {
  std::vector<HostSpan> slice;
  for (const HostSpan& span : spans) {
    const uint64_t skip = std::min<uint64_t>(offset, span.size());
    const uint64_t take = std::min<uint64_t>(bytes, span.size() - skip);
    if (take > 0) slice.push_back(span.subspan(skip, take));
    offset -= skip;
    bytes -= take;
  }
  CHECK_EQ(bytes, 0u);
  return slice;
}

void WritePattern(const std::vector<HostSpan>& image) {
  uint64_t offset = 0;
  for (const HostSpan& span : image) {
    WritePattern(span, offset);
    offset += span.size();
  }
}

bool HoldPattern(const std::vector<HostSpan>& spans, uint64_t image_offset) {
  for (const HostSpan& span : spans) {
    if (!HoldsPattern(span, image_offset)) return false;
    image_offset += span.size();
  }
  return true;
}

InPlaceImage::InPlaceImage(std::vector<HostSpan> segments, std::shared_ptr<const Availability> availability)
    : availability_(std::move(availability)), segments_(segments.begin(), segments.end()) {
  for (const ConstHostSpan& segment : segments_) image_bytes_ += segment.size();
}

absl::StatusOr<ServedPiece> InPlaceImage::Read(uint64_t offset, uint64_t bytes) {
  for (const ConstHostSpan& segment : segments_) {
    if (offset < segment.size()) {
      return ServedPiece{segment.subspan(offset, std::min<uint64_t>(bytes, segment.size() - offset)),
                         nullptr};
    }
    offset -= segment.size();
  }
  return absl::OutOfRangeError("past the end");
}

StagedImage::StagedImage(uint64_t image_bytes, HostSpan staging, int slots, ReadHook before_read,
                         std::shared_ptr<const Availability> availability)
    : image_bytes_(image_bytes),
      slots_(slots),
      before_read_(std::move(before_read)),
      availability_(std::move(availability)) {
  const uint64_t slot_bytes = staging.size() / slots;
  for (int i = 0; i < slots; ++i) free_.push_back(staging.subspan(i * slot_bytes, slot_bytes));
}

StagedImage::~StagedImage() {
  absl::MutexLock lock(&mutex_);
  CHECK_EQ(free_.size(), static_cast<size_t>(slots_)) << "a piece outlived its image";
}

absl::StatusOr<ServedPiece> StagedImage::Read(uint64_t offset, uint64_t bytes) {
  if (before_read_ != nullptr) {
    if (absl::Status status = before_read_(offset); !status.ok()) return status;
  }
  const HostSpan slot = TakeSlot();
  const HostSpan piece = slot.first(std::min<uint64_t>(bytes, slot.size()));
  WritePattern(piece, offset);
  return ServedPiece{piece, std::shared_ptr<void>(nullptr, [this, slot](void*) { FreeSlot(slot); })};
}

HostSpan StagedImage::TakeSlot() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &StagedImage::AnyFree));
  const HostSpan slot = free_.back();
  free_.pop_back();
  return slot;
}

void StagedImage::FreeSlot(HostSpan slot) {
  // What was read before the release must have been read: make a late reader visible.
  std::memset(slot.data(), 0xdd, slot.size());
  absl::MutexLock lock(&mutex_);
  free_.push_back(slot);
}

bool AwaitChange(const Availability& availability, absl::FunctionRef<bool()> holds) {
  absl::Mutex mutex;
  bool changed = true;
  const Availability::Watch watch = availability.OnChange([&] {
    absl::MutexLock lock(&mutex);
    changed = true;
  });
  while (!holds()) {
    absl::MutexLock lock(&mutex);
    if (!mutex.AwaitWithTimeout(absl::Condition(&changed), kGuard)) return false;
    changed = false;
  }
  return true;
}

FetchDone Completions::Expect() {
  absl::MutexLock lock(&mutex_);
  const size_t index = statuses_.size();
  statuses_.push_back(absl::UnknownError("not completed"));
  digests_.emplace_back();
  complete_.push_back(false);
  return [this, index](const FetchResult& result) { Complete(index, result); };
}

void Completions::Complete(size_t index, const FetchResult& result) {
  absl::MutexLock lock(&mutex_);
  if (complete_[index]) {
    repeated_ = true;
    return;
  }
  complete_[index] = true;
  statuses_[index] = result.status();
  if (result.ok()) digests_[index] = *result;
  ++done_;
}

bool Completions::Wait() {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &Completions::AllDone), kGuard);
}

bool Completions::WaitForAny() {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &Completions::AnyDone), kGuard);
}

std::vector<absl::Status> Completions::statuses() const {
  absl::MutexLock lock(&mutex_);
  return statuses_;
}

std::vector<std::optional<Digest>> Completions::digests() const {
  absl::MutexLock lock(&mutex_);
  return digests_;
}

size_t Completions::completed() const {
  absl::MutexLock lock(&mutex_);
  return done_;
}

bool Completions::repeated() const {
  absl::MutexLock lock(&mutex_);
  return repeated_;
}

}  // namespace tensorcast::transport
