// An Availability is the set of chunks that a replica or a peer has. Each of these chunks is in its place and
// stays there. Each is verified, except those of BroadcastMember::arrived and ReplicaInfo::chunks_unverified.
// The set only grows. It ends once, because it is complete or no more chunks come; the status says which.
//
// A pull has two availabilities: one at the source and its mirror at the receiver. The ingest of the source's
// replica writes the availability at the source. The lane sends the changes to the mirror. The receiver picks
// chunks by the mirror.
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
  // Keeps an observer registered. The destructor waits for a running call of the observer. Movable. Must not
  // outlive the availability.
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

  // An empty set for an image with chunks of this size; the last chunk may be shorter. REQUIRES: both are
  // positive.
  Availability(uint64_t image_bytes, uint64_t chunk_bytes);
  Availability(const Availability&) = delete;
  Availability& operator=(const Availability&) = delete;

  uint64_t image_bytes() const { return image_bytes_; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint32_t chunks() const { return chunks_; }

  // Adds a chunk. Does nothing if the set has the chunk or has ended. REQUIRES: chunk < chunks().
  void Add(uint32_t chunk);
  // Adds the chunks of a peer's announcement: chunk `first` + i if bit i % 64 of words[i / 64] is set. Bits
  // past the last chunk are ignored. Calls the observers at most once.
  void AddWords(uint32_t first, const std::vector<uint64_t>& words);
  // Ends the set. `why` is OK if the writer has finished, else the reason. Later calls have no effect.
  void End(absl::Status why);

  bool Has(uint32_t chunk) const;
  // Whether the set has all image bytes [offset, offset + bytes). False for a range that reaches past the
  // image. REQUIRES: bytes > 0.
  bool HasRange(uint64_t offset, uint64_t bytes) const;
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  bool complete() const { return count() == chunks_; }
  // The chunks as bits: chunk i is bit i % 64 of word i / 64.
  std::vector<uint64_t> Words() const;
  // One word of Words(). REQUIRES: index * 64 < chunks().
  uint64_t Word(uint32_t index) const { return words_[index].load(std::memory_order_acquire); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // The status that was given to End. REQUIRES: ended(), and the caller is not an observer.
  absl::Status end() const;

  // Calls `observer` after each later change, on the thread that made the change and under a lock of this
  // object. The observer may wake a thread or post a task. The observer must not block, because ~Watch waits
  // for its end.
  [[nodiscard]] Watch OnChange(std::function<void()> observer) const;

 private:
  bool Set(uint32_t chunk);  // returns whether the chunk is new
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
