// Copies to a device that use no processor of the host, for several threads: from another device, or from
// page-locked host memory. Unless the caller declines, each copy is digested at its destination; only the
// digest comes to the host.
//
// Each running copy has its own stream. A digest keeps only one multiprocessor of a device busy, so several
// digests must run at the same time to keep up with the copies. Streams are kept for later copies, until this
// object is destroyed; a stream with an error is not used again.
//
// Thread-safe. No lock is held while a thread waits for a copy.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

class DirectCopies {
 private:
  struct Lane;

 public:
  // This many running copies keep a device busy; more gain nothing.
  static constexpr int kAtOnce = 32;

  // A running copy. Its source and destination must not be freed or used otherwise before Await; the
  // destructor awaits the copy, too. Must not outlive its owner. Movable; one thread at a time.
  class Pending {
   public:
    Pending(Pending&& other) noexcept;
    Pending& operator=(Pending&&) = delete;
    ~Pending();

    // Blocks until the bytes are in their place, and returns their digest (zeros if none was requested). An
    // error if one of the devices or the path between them fails. To be called once.
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
  // REQUIRES: no copy is running.
  ~DirectCopies();
  DirectCopies(const DirectCopies&) = delete;
  DirectCopies& operator=(const DirectCopies&) = delete;

  // Whether bytes in memory of `from` can be copied directly to memory of `to`, and digested there.
  bool Reach(int from, int to) const;
  // Begins to copy `bytes` at `source` to `destination`; if both are the same place, it only digests. After
  // an error no copy is running.
  absl::StatusOr<Pending> Begin(DevicePtr destination, DevicePtr source, uint64_t bytes, bool digest = true);
  // Begins to copy the pieces of `source`, one after the other, to `destination`, and always digests them
  // there. REQUIRES: the pieces are page-locked, or this blocks while they are copied.
  absl::StatusOr<Pending> BeginUpload(DevicePtr destination,
                                      std::span<const std::span<const std::byte>> source);

 private:
  absl::StatusOr<Pending> Begin(DeviceRange destination, bool digest,
                                absl::FunctionRef<absl::Status(Stream&)> copy);
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
