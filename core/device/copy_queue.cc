#include "core/device/copy_queue.h"

#include <utility>

#include "base/status.h"

namespace tensorcast {

// A Pending owns its lane with the queue. A lane that failed is replaced in the queue, and lives on until its
// last Pending has awaited its copy.
CopyQueue::Pending& CopyQueue::Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    Await().IgnoreError();
    lane_ = std::move(other.lane_);
    event_ = std::move(other.event_);
  }
  return *this;
}

CopyQueue::Pending::~Pending() { Await().IgnoreError(); }

absl::Status CopyQueue::Pending::Await() {
  // Taken out, so that the destructor does not await it again.
  const std::unique_ptr<Event> event = std::move(event_);
  if (event == nullptr) return absl::OkStatus();
  absl::Status done = event->Await();
  // From here on copies go to another stream (LaneInUse).
  if (!done.ok()) lane_->failed = true;
  return done;
}

absl::Status CopyQueue::Open() {
  absl::MutexLock lock(&mutex_);
  return LaneInUse().status();
}

absl::StatusOr<CopyQueue::Pending> CopyQueue::ToDevice(DevicePtr destination,
                                                       std::span<const std::span<const std::byte>> source) {
  return Enqueue([&](Stream& stream) {
    DevicePtr target = destination;
    for (const std::span<const std::byte> piece : source) {
      TC_RETURN_IF_ERROR(stream.CopyToDevice(target, piece.data(), piece.size()));
      target = target + piece.size();
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<CopyQueue::Pending> CopyQueue::ToHost(std::span<std::byte> destination, DevicePtr source) {
  return Enqueue(
      [&](Stream& stream) { return stream.CopyToHost(destination.data(), source, destination.size()); });
}

absl::StatusOr<std::shared_ptr<CopyQueue::Lane>> CopyQueue::LaneInUse() {
  // The state of a stream after an error is unknown: copies that come next use another.
  if (lane_ == nullptr || lane_->failed) {
    auto fresh = std::make_shared<Lane>();
    TC_ASSIGN_OR_RETURN(fresh->stream, devices_->CreateStream(device_));
    lane_ = std::move(fresh);
  }
  return lane_;
}

absl::StatusOr<CopyQueue::Pending> CopyQueue::Enqueue(absl::FunctionRef<absl::Status(Stream&)> copies) {
  std::shared_ptr<Lane> lane;
  absl::Status failed;
  {
    // Copy and event are enqueued under one lock, so that no other copy comes between them. Nothing here
    // waits for the device.
    absl::MutexLock lock(&mutex_);
    TC_ASSIGN_OR_RETURN(lane, LaneInUse());
    failed = copies(*lane->stream);
    if (failed.ok()) {
      absl::StatusOr<std::unique_ptr<Event>> event = lane->stream->Record();
      if (event.ok()) return Pending(std::move(lane), *std::move(event));
      failed = event.status();
    }
    lane_ = nullptr;  // no other copy is enqueued on it from here on
  }
  // A part of it may be under way, and the caller may free its memory after an error. Without the lock, since
  // this waits for the device.
  lane->stream->Synchronize().IgnoreError();
  return failed;
}

}  // namespace tensorcast
