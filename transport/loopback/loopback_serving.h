// A serving of the loopback transport, and the registry in which pulls find it. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/replica/availability.h"
#include "transport/serving.h"
#include "transport/transport.h"

namespace tensorcast::transport {

// What pulls share with the serving. Pulls keep it alive; its image is only touched between BeginUse and
// EndUse. Thread-safe.
class LoopbackSource : public std::enable_shared_from_this<LoopbackSource> {
 public:
  // `threads` must outlive Revoke(). `devices`: an image in their memory is read in place;
  // null: it is read as if there were none.
  LoopbackSource(std::shared_ptr<ServedImage> image, ServingThreads* threads, DeviceRuntime* devices);

  uint64_t image_bytes() const { return image_bytes_; }
  bool in_place() const { return in_place_; }

  // False once revoked. Between BeginUse and EndUse the image's memory may be read.
  bool BeginUse() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndUse() ABSL_LOCKS_EXCLUDED(mutex_);
  bool revoked() ABSL_LOCKS_EXCLUDED(mutex_);

  // REQUIRES: in_place(), and in use.
  ConstHostSpan InPlace(uint64_t offset, uint64_t bytes) const;

  // Where it is on a GPU, and how to copy from there; none: it is read otherwise. REQUIRES of a copy: in use.
  DevicePtr device_image() const { return device_image_; }
  DeviceRuntime* devices() const { return devices_; }

  // Of an image that fills; null: everything is there.
  const std::shared_ptr<const Availability>& availability() const { return availability_; }
  // `changed` is called when the image has more, when it is over, and when the serving is revoked, until
  // Ignore, which waits for a running call. It posts and no more.
  uint64_t Follow(std::function<void()> changed) ABSL_LOCKS_EXCLUDED(mutex_);
  void Ignore(uint64_t follower) ABSL_LOCKS_EXCLUDED(mutex_);

  // ServedImage::Read on a serving thread; `done` runs there. UNAVAILABLE at once when revoked.
  void ReadStaged(uint64_t offset, uint64_t bytes, absl::AnyInvocable<void(absl::StatusOr<ServedPiece>)> done)
      ABSL_LOCKS_EXCLUDED(mutex_);

  ServeCounter& counter() { return counter_; }

  // Blocks until no thread uses the image; none will again.
  void Revoke() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void TellFollowers() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Unused() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return users_ == 0; }

  std::shared_ptr<ServedImage> image_;  // read in use only; one on a GPU goes when revoked
  ServingThreads* const threads_;
  const uint64_t image_bytes_;
  const bool in_place_;
  DeviceRuntime* const devices_;
  const DevicePtr device_image_;
  const std::shared_ptr<const Availability> availability_;
  ServeCounter counter_;
  absl::Mutex mutex_;
  bool revoked_ ABSL_GUARDED_BY(mutex_) = false;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::function<void()>> followers_ ABSL_GUARDED_BY(mutex_);
  uint64_t followers_made_ ABSL_GUARDED_BY(mutex_) = 0;
  Availability::Watch watch_;  // the first to go
};

// "TCLB", a version byte, the pull id.
std::string EncodeLoopbackDescriptor(const PullId& id);
// INVALID_ARGUMENT for bytes that are none, FAILED_PRECONDITION for those of another version.
absl::StatusOr<PullId> DecodeLoopbackDescriptor(std::string_view bytes);

// The process's servings. The source is found as long as the Serving lives, and so long `hold` is kept.
std::unique_ptr<Serving> RegisterLoopbackServing(std::shared_ptr<LoopbackSource> source,
                                                 std::shared_ptr<void> hold);
// nullptr when there is none.
std::shared_ptr<LoopbackSource> FindLoopbackSource(const PullId& id);

}  // namespace tensorcast::transport
