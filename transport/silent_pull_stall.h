// Notices that a pull is silent: bytes were requested, and none arrived for a whole limit.
//
// Time in which the owner thread did not run does not count. On a busy machine, or after the process was
// stopped, the thread's timers fire before it has read the bytes that arrived meanwhile, and the source would
// be blamed for the thread's own pause. The limit is therefore counted in slices, and a slice counts as one
// however long it took.
//
// Only the owner thread of the queue uses it.
#pragma once

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "base/task_queue.h"

namespace tensorcast::transport {

class SilentPullStall {
 public:
  // Silence is noticed at most limit / kSlices too late.
  static constexpr int kSlices = 8;

  // Calls `on_silence` once for each silence; it may call Start again. `queue` must outlive this object.
  SilentPullStall(TaskQueue* queue, std::function<void()> on_silence)
      : queue_(queue), on_silence_(std::move(on_silence)) {}
  // REQUIRES: Stop was called, or the last Start has led to `on_silence`.
  ~SilentPullStall();
  SilentPullStall(const SilentPullStall&) = delete;
  SilentPullStall& operator=(const SilentPullStall&) = delete;

  absl::Duration limit() const { return limit_; }
  // Applies from the next slice on. The limit is infinite until this is called.
  void set_limit(absl::Duration limit) { limit_ = limit; }

  // Bytes are requested from now on. Has no effect while it runs already, or while the limit is infinite.
  void Start();
  void BytesArrived() { heard_ = true; }
  // No bytes are requested any more.
  void Stop();

 private:
  void ArmSlice();
  void SliceOver();

  TaskQueue* const queue_;
  const std::function<void()> on_silence_;
  absl::Duration limit_ = absl::InfiniteDuration();
  TaskQueue::TimerId timer_ = TaskQueue::kNoTimer;
  bool heard_ = false;  // in this slice
  int silent_slices_ = 0;
};

}  // namespace tensorcast::transport
