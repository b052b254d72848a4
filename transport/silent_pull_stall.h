// Notices that a pull is silent: bytes were asked for, and for a whole limit none arrived.
//
// Time in which the owner thread did not run does not count. Such a thread (on a busy machine, in a process
// that was stopped) finds its timers due before it has read what arrived meanwhile, and would blame the
// source for its own absence. So the limit is counted in slices, and one that was slept through is one slice
// however long it took.
//
// For the owner thread of the queue alone.
#pragma once

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "base/task_queue.h"

namespace tensorcast::transport {

class SilentPullStall {
 public:
  // A limit is noticed at most this part of it too late.
  static constexpr int kSlices = 8;

  // `on_silence` is called once for each silence, and may Start anew. The queue must outlive this.
  SilentPullStall(TaskQueue* queue, std::function<void()> on_silence)
      : queue_(queue), on_silence_(std::move(on_silence)) {}
  // REQUIRES: stopped.
  ~SilentPullStall();
  SilentPullStall(const SilentPullStall&) = delete;
  SilentPullStall& operator=(const SilentPullStall&) = delete;

  absl::Duration limit() const { return limit_; }
  // From the next slice on. Infinite until it is called.
  void set_limit(absl::Duration limit) { limit_ = limit; }

  // Something is asked for; nothing changes where something was already.
  void Start();
  void BytesArrived() { heard_ = true; }
  // Nothing is asked for any more.
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
