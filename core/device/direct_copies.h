// Copies from device to device that never touch the host, each digested where it arrives unless the caller
// does not want that, for several threads. Only the digests come to the host.
//
// Each has a stream of its own while it is under way: a digest keeps one of a device's multiprocessors busy,
// so it takes several of them to keep up with the copies. Streams are kept for later copies, until
// the owner goes; a stream that had an error is not used again.
//
// Thread-safe. No lock is held while a thread waits for a copy.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

class DirectCopies {
 private:
  struct Lane;

 public:
  // So many copies under way keep a device busy; more gain nothing.
  static constexpr int kAtOnce = 32;

  // A copy under way. Neither end of it may be freed or used otherwise before it was awaited; destroying it
  // awaits it. Must not outlive its owner. Movable; one thread at a time.
  class Pending {
   public:
    Pending(Pending&& other) noexcept;
    Pending& operator=(Pending&&) = delete;
    ~Pending();

    // Blocks until the bytes are in their place, and gives their digest (zeros where none was asked for); or
    // until one of the parts has failed: an end of the copy, or the way between them. To be called once.
    absl::StatusOr<DigestBytes> Await();

   private:
    friend class DirectCopies;
    Pending(DirectCopies* owner, std::unique_ptr<Lane> lane, std::unique_ptr<Event> event);

    DirectCopies* const owner_;
    std::unique_ptr<Lane> lane_;
    std::unique_ptr<Event> event_;  // goes before its stream; null: it was awaited
  };

  // `devices` may be null, and must outlive it.
  explicit DirectCopies(DeviceRuntime* devices);
  // REQUIRES: nothing is under way.
  ~DirectCopies();
  DirectCopies(const DirectCopies&) = delete;
  DirectCopies& operator=(const DirectCopies&) = delete;

  // Whether bytes in memory of `from` can come to memory of `to` this way: straight, and digested there.
  bool Reach(int from, int to) const;
  // The bytes at `source` to `destination`, unless that is the same place. After an error nothing is under
  // way.
  absl::StatusOr<Pending> Begin(DevicePtr destination, DevicePtr source, uint64_t bytes, bool digest = true);

 private:
  absl::StatusOr<std::unique_ptr<Lane>> Take(int device);
  absl::Status PageLockRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Give(std::unique_ptr<Lane> lane, bool good);

  DeviceRuntime* const devices_;
  absl::Mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<Lane>>> idle_ ABSL_GUARDED_BY(mutex_);  // by device
  // Page-locked, for the digests: a device's copy into other memory would block the enqueuing thread. Empty
  // until it is needed.
  std::span<std::byte> room_ ABSL_GUARDED_BY(mutex_);
  std::vector<DigestBytes*> free_ ABSL_GUARDED_BY(mutex_);  // in the room
};

}  // namespace tensorcast
