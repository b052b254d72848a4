// Which chunks of an image a replica or peer has: each is verified, in its place, and stays. It only grows,
// and ends once: complete, or with the reason why no more will come.
//
// One object on each side of a pull: the ingest that fills a replica writes its own, the lane tells the other
// end of it, and a mirror there is what a receiver picks chunks by.
//
// Thread-safe; any number of writers and readers. Queries about chunks, and ended(), take no lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast {

class Availability {
 public:
  // Keeps an observer registered. Its destructor waits for a running call of it. Movable. Must not outlive
  // the availability.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept;
    Watch& operator=(Watch&& other) noexcept;
    ~Watch();

   private:
    friend class Availability;
    Watch(const Availability* watched, uint64_t key) : watched_(watched), key_(key) {}
    void Stop();
    const Availability* watched_ = nullptr;
    uint64_t key_ = 0;
  };

  // Of an image cut into chunks of this size, the last one shorter. REQUIRES: neither is 0. Nothing is there.
  Availability(uint64_t image_bytes, uint64_t chunk_bytes);
  Availability(const Availability&) = delete;
  Availability& operator=(const Availability&) = delete;

  uint64_t image_bytes() const { return image_bytes_; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint32_t chunks() const { return chunks_; }

  // REQUIRES: chunk < chunks(). Nothing happens where it is there already, or after the end.
  void Add(uint32_t chunk);
  // Adds the chunks with a set bit: chunk `first` + i is bit i % 64 of words[i / 64]. Tells observers once.
  // Bits past the last chunk are ignored. For what a peer announces.
  void AddWords(uint32_t first, const std::vector<uint64_t>& words);
  // No more will come: OK when the writer is done, else why not. The first call counts.
  void End(absl::Status why);

  bool Has(uint32_t chunk) const;
  // All of image bytes [offset, offset + bytes), which must not be empty; false for what lies past the image.
  bool HasRange(uint64_t offset, uint64_t bytes) const;
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  bool complete() const { return count() == chunks_; }
  // The chunks as bits: chunk i is bit i % 64 of word i / 64.
  std::vector<uint64_t> Words() const;
  // One of them. REQUIRES: index * 64 < chunks().
  uint64_t Word(uint32_t index) const { return words_[index].load(std::memory_order_acquire); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // REQUIRES: ended(). Not from an observer.
  absl::Status end() const;

  // `observer` is called after each change from then on, on the thread that made it and under a lock of this
  // object: it wakes a thread or posts a task, and blocks on nothing, since ~Watch waits for it.
  [[nodiscard]] Watch OnChange(std::function<void()> observer) const;

 private:
  bool Set(uint32_t chunk);  // whether it was not there
  void TellObservers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t image_bytes_;
  const uint64_t chunk_bytes_;
  const uint32_t chunks_;
  std::vector<std::atomic<uint64_t>> words_;
  std::atomic<uint32_t> count_ = 0;
  mutable absl::Mutex mutex_;
  std::atomic<bool> ended_ = false;  // set under the mutex, with its reason
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  mutable uint64_t next_key_ ABSL_GUARDED_BY(mutex_) = 1;
  mutable std::map<uint64_t, std::function<void()>> observers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
