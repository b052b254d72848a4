// Detects that a pull is silent: requested bytes are outstanding, and no byte arrives for a time limit.
//
// The limit is divided into kSlices slices, each with its own timer on a task queue. Even a long pause of
// the owner thread delays only one timer. So such a pause is not mistaken for silence of the source.
//
// Only the owner thread of the task queue uses this class.
#pragma once

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "base/task_queue.h"

namespace tensorcast::transport {

class SilentPullStall {
 public:
  // The number of slices. Silence is detected at most limit / kSlices too late, plus pauses of the owner
  // thread.
  static constexpr int kSlices = 8;

  // Calls `on_silence` when the limit is reached, and stops. `on_silence` may call Start. `queue` must
  // outlive this object.
  SilentPullStall(TaskQueue* queue, std::function<void()> on_silence)
      : queue_(queue), on_silence_(std::move(on_silence)) {}
  // REQUIRES: stopped, or never started.
  ~SilentPullStall();
  SilentPullStall(const SilentPullStall&) = delete;
  SilentPullStall& operator=(const SilentPullStall&) = delete;

  absl::Duration limit() const { return limit_; }
  // Applies from the next slice on. Before the first call the limit is infinite.
  void set_limit(absl::Duration limit) { limit_ = limit; }

  // Call when bytes are requested. Has no effect while started, or if the limit is infinite.
  void Start();
  void BytesArrived() { heard_ = true; }
  // Call when no requested bytes are outstanding.
  void Stop();

 private:
  void ArmSlice();
  void SliceOver();

  TaskQueue* const queue_;
  const std::function<void()> on_silence_;
  absl::Duration limit_ = absl::InfiniteDuration();
  TaskQueue::TimerId timer_ = TaskQueue::kNoTimer;
  bool heard_ = false;  // bytes arrived in this slice
  int silent_slices_ = 0;
};

}  // namespace tensorcast::transport
