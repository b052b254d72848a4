// Copies to a device that use no processor of the host, for several threads: from another device, or from
// page-locked host memory. By default the device also digests the bytes at their destination; only the digest
// comes to the host.
//
// Each running copy has its own stream. A digest keeps only one multiprocessor of a device busy, so several
// digests must run at the same time to keep up with the copies. Streams are kept for later copies until this
// object is destroyed; a stream with an error is not used again.
//
// Thread-safe. No lock is held while a thread waits for a copy.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "core/device/page_locked_memory.h"

namespace tensorcast {

class DirectCopies {
 private:
  struct Lane;

 public:
  // This many running copies keep a device busy; more do not increase the rate.
  static constexpr int kAtOnce = 32;

  // A running copy. Its source and destination must not be freed, and the destination must not be used,
  // before Await returns. The destructor awaits the copy, too. Must not outlive the DirectCopies. Movable;
  // thread-compatible.
  class Pending {
   public:
    Pending(Pending&& other) noexcept;
    Pending& operator=(Pending&&) = delete;
    ~Pending();

    // Blocks until the copy is done, and returns its digest (zeros if none was requested). An error if one of
    // the devices or the path between them fails. Call it once.
    absl::StatusOr<DigestBytes> Await();

   private:
    friend class DirectCopies;
    Pending(DirectCopies* owner, std::unique_ptr<Lane> lane, std::unique_ptr<Event> event);

    DirectCopies* const owner_;
    std::unique_ptr<Lane> lane_;
    std::unique_ptr<Event> event_;  // destroyed before its stream; null: it was awaited
  };

  // `devices` must outlive this object. It may be null: Reach then returns false.
  explicit DirectCopies(DeviceRuntime* devices);
  // REQUIRES: no copy is running.
  ~DirectCopies();
  DirectCopies(const DirectCopies&) = delete;
  DirectCopies& operator=(const DirectCopies&) = delete;

  // Whether bytes in memory of device `from` can be copied directly to memory of device `to`, and digested
  // there.
  bool Reach(int from, int to) const;
  // Begins to copy `bytes` bytes at `source` to `destination`. If both are the same address, only digests the
  // bytes. RESOURCE_EXHAUSTED if too many copies are running. After an error no copy is running.
  absl::StatusOr<Pending> Begin(DevicePtr destination, DevicePtr source, uint64_t bytes, bool digest = true);
  // Begins to copy the pieces of `source`, one after the other, to contiguous memory at `destination`, and
  // digests them there. Blocks while it copies a piece that is not page-locked.
  absl::StatusOr<Pending> BeginUpload(DevicePtr destination,
                                      std::span<const std::span<const std::byte>> source);

 private:
  absl::StatusOr<Pending> Begin(DeviceRange destination, bool digest,
                                absl::FunctionRef<absl::Status(Stream&)> copy);
  absl::StatusOr<std::unique_ptr<Lane>> Take(int device);
  absl::Status MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Give(std::unique_ptr<Lane> lane, bool good);

  DeviceRuntime* const devices_;
  absl::Mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<Lane>>> idle_ ABSL_GUARDED_BY(mutex_);  // by device
  // For the digests: a copy from a device into memory that is not page-locked would block the thread that
  // enqueues it. nullopt until the first copy.
  std::optional<PageLockedMemory> room_ ABSL_GUARDED_BY(mutex_);
  std::vector<DigestBytes*> free_ ABSL_GUARDED_BY(mutex_);  // unused places in room_
};

}  // namespace tensorcast
