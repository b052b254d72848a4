// Copies to a device from another device or from page-locked host memory, for several threads. The copies
// use no processor of the host. By default the destination's device also digests the bytes.
//
// Each running copy has its own stream, because several digests must run at the same time to keep up with
// the copies. The destructor frees the streams; a failed stream is freed at once.
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

  // A running copy. Until Await returns, source and destination must not be freed, and the destination must
  // not be used. The destructor waits for the copy. Must not outlive the DirectCopies. Movable;
  // thread-compatible.
  class Pending {
   public:
    Pending(Pending&& other) noexcept;
    Pending& operator=(Pending&&) = delete;
    ~Pending();

    // Blocks until the copy is done, and returns its digest (zeros if no digest was requested). Fails if a
    // device or the path between the devices fails. Call it once.
    absl::StatusOr<DigestBytes> Await();

   private:
    friend class DirectCopies;
    Pending(DirectCopies* owner, std::unique_ptr<Lane> lane, std::unique_ptr<Event> event);

    DirectCopies* const owner_;
    std::unique_ptr<Lane> lane_;
    std::unique_ptr<Event> event_;  // destroyed before its stream; null after Await
  };

  // `devices` must outlive this object. If `devices` is null, Reach returns false.
  explicit DirectCopies(DeviceRuntime* devices);
  // REQUIRES: no copy is running.
  ~DirectCopies();
  DirectCopies(const DirectCopies&) = delete;
  DirectCopies& operator=(const DirectCopies&) = delete;

  // Whether memory of device `from` can be copied directly to device `to`, and digested on `to`.
  bool Reach(int from, int to) const;
  // Begins to copy `bytes` bytes at `source` to `destination`. If both addresses are equal, only digests the
  // bytes. RESOURCE_EXHAUSTED if too many copies are running. After an error no part of this copy is running.
  absl::StatusOr<Pending> Begin(DevicePtr destination, DevicePtr source, uint64_t bytes, bool digest = true);
  // Begins to copy the pieces of `source`, one after the other, to contiguous memory at `destination`, and
  // digests the bytes on the device. Blocks while it copies a piece that is not page-locked. Errors as Begin.
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
  // The memory for the digests. It is page-locked, so that the copy of a digest does not block its thread.
  // nullopt until the first copy.
  std::optional<PageLockedMemory> room_ ABSL_GUARDED_BY(mutex_);
  std::vector<DigestBytes*> free_ ABSL_GUARDED_BY(mutex_);  // unused places in room_
};

}  // namespace tensorcast
