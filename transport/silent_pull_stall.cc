#include "transport/silent_pull_stall.h"

#include "absl/log/check.h"
#include "base/steady_time.h"

namespace tensorcast::transport {

SilentPullStall::~SilentPullStall() { CHECK(timer_ == TaskQueue::kNoTimer); }

void SilentPullStall::Start() {
  if (timer_ != TaskQueue::kNoTimer || limit_ == absl::InfiniteDuration()) return;
  silent_slices_ = 0;
  ArmSlice();
}

void SilentPullStall::Stop() {
  if (timer_ == TaskQueue::kNoTimer) return;
  queue_->CancelTimer(timer_);
  timer_ = TaskQueue::kNoTimer;
}

void SilentPullStall::ArmSlice() {
  heard_ = false;
  // From now on, and not from when the slice before should have ended: time in which this thread did not run
  // is part of one slice.
  timer_ = queue_->At(SteadyNow() + limit_ / kSlices, [this] { SliceOver(); });
}

// The owner has no fetch in flight only after Stop, so a slice always judges a time in which bytes were
// requested.
void SilentPullStall::SliceOver() {
  timer_ = TaskQueue::kNoTimer;
  // Silence is a whole limit of slices in a row without a byte.
  silent_slices_ = heard_ ? 0 : silent_slices_ + 1;
  if (silent_slices_ == kSlices) {
    on_silence_();
  } else {
    ArmSlice();
  }
}

}  // namespace tensorcast::transport
