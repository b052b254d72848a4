// Detects that a pull is silent: bytes were requested, and for a whole limit none arrived.
//
// Time in which the owner thread did not run does not count. Otherwise a source would be blamed for a pause
// of this process: after a pause the timers fire before the thread has read the bytes that arrived meanwhile.
// The limit is therefore divided into kSlices slices, each with its own timer. A pause lengthens one slice,
// which still counts as one.
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
  // Silence is detected at most limit / kSlices late, apart from pauses of the thread.
  static constexpr int kSlices = 8;

  // Calls `on_silence` once for each silence and then stops; `on_silence` may call Start again. `queue` must
  // outlive this object.
  SilentPullStall(TaskQueue* queue, std::function<void()> on_silence)
      : queue_(queue), on_silence_(std::move(on_silence)) {}
  // REQUIRES: not started, stopped, or `on_silence` was called since the last Start.
  ~SilentPullStall();
  SilentPullStall(const SilentPullStall&) = delete;
  SilentPullStall& operator=(const SilentPullStall&) = delete;

  absl::Duration limit() const { return limit_; }
  // Applies from the next slice on. Before the first call the limit is infinite.
  void set_limit(absl::Duration limit) { limit_ = limit; }

  // To be called when bytes are requested. Has no effect if the slices already run, or if the limit is
  // infinite.
  void Start();
  void BytesArrived() { heard_ = true; }
  // To be called when no requested bytes are outstanding.
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
