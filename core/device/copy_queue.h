// Copies between host memory and one device, in one direction, for several threads. One stream runs the
// copies in the order in which they were enqueued. Each thread waits only for its own copy.
//
// A copy that fails also fails the copies enqueued behind it. So each user of the device (an ingest, a
// source) has its own queue.
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
  // A running copy. Until Await returns, source and destination must not be freed, and the destination must
  // not be used. The destructor waits for the copy. May outlive its queue. Movable; thread-compatible.
  class Pending {
   public:
    Pending() = default;  // no copy
    Pending(Pending&& other) noexcept = default;
    Pending& operator=(Pending&& other) noexcept;
    ~Pending();

    explicit operator bool() const { return event_ != nullptr; }
    // Blocks until the copy is done or has failed. After a failure, later copies of the queue use a new
    // stream. A second call returns OK at once.
    absl::Status Await();

   private:
    friend class CopyQueue;
    Pending(std::shared_ptr<Lane> lane, std::unique_ptr<Event> event)
        : lane_(std::move(lane)), event_(std::move(event)) {}

    std::shared_ptr<Lane> lane_;
    std::unique_ptr<Event> event_;  // destroyed before its stream
  };

  // `devices` must outlive the queue and its copies.
  CopyQueue(DeviceRuntime* devices, int device) : devices_(devices), device_(device) {}

  // Makes the stream now. Without this call the first copy makes the stream.
  absl::Status Open();
  // Begins to copy the pieces of `source`, one after the other, to contiguous memory at `destination`. After
  // an error no part of the copy is running.
  absl::StatusOr<Pending> ToDevice(DevicePtr destination, std::span<const std::span<const std::byte>> source);
  // Begins to copy device memory at `source` to all of `destination`. Errors as ToDevice.
  absl::StatusOr<Pending> ToHost(std::span<std::byte> destination, DevicePtr source);

 private:
  struct Lane {
    std::unique_ptr<Stream> stream;
    std::atomic<bool> failed = false;
  };

  absl::StatusOr<std::shared_ptr<Lane>> LaneInUse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Pending> Enqueue(absl::FunctionRef<absl::Status(Stream&)> copies);

  DeviceRuntime* const devices_;
  const int device_;
  absl::Mutex mutex_;
  std::shared_ptr<Lane> lane_ ABSL_GUARDED_BY(mutex_);  // null until a stream was made
};

}  // namespace tensorcast
