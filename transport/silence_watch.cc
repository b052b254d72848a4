#include "transport/silence_watch.h"

#include "absl/log/check.h"
#include "base/steady_time.h"

namespace tensorcast::transport {

SilenceWatch::~SilenceWatch() { CHECK(timer_ == TaskQueue::kNoTimer); }

void SilenceWatch::Start() {
  if (timer_ != TaskQueue::kNoTimer || limit_ == absl::InfiniteDuration()) return;
  silent_slices_ = 0;
  ArmSlice();
}

void SilenceWatch::Stop() {
  if (timer_ == TaskQueue::kNoTimer) return;
  queue_->CancelTimer(timer_);
  timer_ = TaskQueue::kNoTimer;
}

void SilenceWatch::ArmSlice() {
  heard_ = false;
  timer_ = queue_->At(SteadyNow() + limit_ / kSlices, [this] { SliceOver(); });
}

void SilenceWatch::SliceOver() {
  timer_ = TaskQueue::kNoTimer;
  silent_slices_ = heard_ ? 0 : silent_slices_ + 1;
  if (silent_slices_ == kSlices) {
    on_silence_();
  } else {
    ArmSlice();
  }
}

}  // namespace tensorcast::transport
