#include "core/replica/availability.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"

namespace tensorcast {
namespace {

constexpr uint32_t kBits = 64;

uint32_t ChunkCount(uint64_t image_bytes, uint64_t chunk_bytes) {
  CHECK(image_bytes > 0 && chunk_bytes > 0)
      << "an availability needs an image that has bytes and a chunk size";
  return static_cast<uint32_t>((image_bytes - 1) / chunk_bytes + 1);
}

}  // namespace

Availability::Watch::Watch(Watch&& other) noexcept
    : watched_(std::exchange(other.watched_, nullptr)), key_(other.key_) {}

Availability::Watch& Availability::Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    Stop();
    watched_ = std::exchange(other.watched_, nullptr);
    key_ = other.key_;
  }
  return *this;
}

Availability::Watch::~Watch() { Stop(); }

void Availability::Watch::Stop() {
  if (watched_ == nullptr) return;
  // Observers run under this lock, so a running call has ended when it is taken.
  absl::MutexLock lock(&watched_->mutex_);
  watched_->observers_.erase(key_);
}

// Readers take no lock: bits and count are atomics that only grow. Writers hold the mutex, which orders
// additions, the end and the calls of observers.
Availability::Availability(uint64_t image_bytes, uint64_t chunk_bytes)
    : image_bytes_(image_bytes),
      chunk_bytes_(chunk_bytes),
      chunks_(ChunkCount(image_bytes, chunk_bytes)),
      words_((chunks_ + kBits - 1) / kBits) {}

// The chunk's bytes were written before its bit: a thread that sees the bit may read them.
bool Availability::Set(uint32_t chunk) {
  // The bit first, then the count: a reader that sees the count finds as many bits.
  const uint64_t bit = uint64_t{1} << (chunk % kBits);
  if ((words_[chunk / kBits].fetch_or(bit, std::memory_order_acq_rel) & bit) != 0) return false;
  count_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void Availability::TellObservers() const {
  for (const auto& [key, observer] : observers_) observer();
}

void Availability::Add(uint32_t chunk) {
  CHECK_LT(chunk, chunks_);
  // The lock keeps additions before the end, and one observer's calls apart.
  absl::MutexLock lock(&mutex_);
  if (!ended_ && Set(chunk)) TellObservers();
}

void Availability::AddWords(uint32_t first, const std::vector<uint64_t>& words) {
  absl::MutexLock lock(&mutex_);
  // Bits behind the last chunk are passed over: the words come from another process.
  if (ended_ || first >= chunks_) return;
  bool changed = false;
  const uint64_t bits = std::min<uint64_t>(words.size() * kBits, chunks_ - first);
  for (uint64_t i = 0; i < bits; ++i) {
    if ((words[i / kBits] >> (i % kBits) & 1) != 0) changed |= Set(static_cast<uint32_t>(first + i));
  }
  if (changed) TellObservers();
}

void Availability::End(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  end_ = std::move(why);
  // The status is written before the flag, which readers look at without the lock.
  ended_.store(true, std::memory_order_release);
  TellObservers();
}

bool Availability::Has(uint32_t chunk) const {
  if (chunk >= chunks_) return false;
  return (words_[chunk / kBits].load(std::memory_order_acquire) >> (chunk % kBits) & 1) != 0;
}

bool Availability::HasRange(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0 || offset >= image_bytes_ || bytes > image_bytes_ - offset) return false;
  const uint64_t last = (offset + bytes - 1) / chunk_bytes_;
  for (uint64_t chunk = offset / chunk_bytes_; chunk <= last; ++chunk) {
    if (!Has(static_cast<uint32_t>(chunk))) return false;
  }
  return true;
}

std::vector<uint64_t> Availability::Words() const {
  std::vector<uint64_t> words;
  words.reserve(words_.size());
  for (const std::atomic<uint64_t>& word : words_) words.push_back(word.load(std::memory_order_acquire));
  return words;
}

absl::Status Availability::end() const {
  absl::MutexLock lock(&mutex_);
  CHECK(ended()) << "asked how it ended while it goes on";
  return end_;
}

Availability::Watch Availability::OnChange(std::function<void()> observer) const {
  absl::MutexLock lock(&mutex_);
  const uint64_t key = next_key_++;
  observers_.emplace(key, std::move(observer));
  return Watch(this, key);
}

}  // namespace tensorcast
