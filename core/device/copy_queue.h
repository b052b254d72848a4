// Copies between host memory and one device, in one direction, for several threads: one stream, so that they
// run back to back in the order in which they were enqueued, and an event for each, so that each thread waits
// for its own copy alone.
//
// A stream belongs to one user of the device (an ingest, a source), not to the device: copies of one
// direction share the device's engine anyway, and an error on a stream fails all copies enqueued after it.
//
// Thread-safe. No lock is held while a thread waits for a copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

class CopyQueue {
 private:
  struct Lane;

 public:
  // A copy under way. Neither end of it may be freed or used otherwise before it was awaited; destroying it
  // awaits it. May outlive its queue. Movable; one thread at a time.
  class Pending {
   public:
    Pending() = default;  // of nothing
    Pending(Pending&& other) noexcept = default;
    Pending& operator=(Pending&& other) noexcept;
    ~Pending();

    explicit operator bool() const { return event_ != nullptr; }
    // Blocks until the copy is done, or it and what was enqueued after it have failed. To be called once.
    absl::Status Await();

   private:
    friend class CopyQueue;
    Pending(std::shared_ptr<Lane> lane, std::unique_ptr<Event> event)
        : lane_(std::move(lane)), event_(std::move(event)) {}

    std::shared_ptr<Lane> lane_;
    std::unique_ptr<Event> event_;  // destroyed before its stream
  };

  // `devices` must outlive it and its copies.
  CopyQueue(DeviceRuntime* devices, int device) : devices_(devices), device_(device) {}

  // Makes the stream, as the first copy would.
  absl::Status Open();
  // The pieces of `source`, one after the other, to `destination`. After an error nothing is under way.
  absl::StatusOr<Pending> ToDevice(DevicePtr destination, std::span<const std::span<const std::byte>> source);
  absl::StatusOr<Pending> ToHost(std::span<std::byte> destination, DevicePtr source);

 private:
  // A stream until it fails.
  struct Lane {
    std::unique_ptr<Stream> stream;
    std::atomic<bool> failed = false;
  };

  absl::StatusOr<std::shared_ptr<Lane>> LaneInUse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Pending> Enqueue(absl::FunctionRef<absl::Status(Stream&)> copies);

  DeviceRuntime* const devices_;
  const int device_;
  absl::Mutex mutex_;
  std::shared_ptr<Lane> lane_ ABSL_GUARDED_BY(mutex_);  // null: none yet
};

}  // namespace tensorcast
