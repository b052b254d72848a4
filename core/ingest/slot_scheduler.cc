#include "core/ingest/slot_scheduler.h"

#include <utility>

namespace tensorcast {

void SlotScheduler::AddArrived(FetchPtr fetch) {
  arrived_.push_back(std::move(fetch));
  slots_wake_ = true;
}

void SlotScheduler::AddPlacing(FetchPtr fetch) {
  placing_.push_back(std::move(fetch));
  slots_wake_ = true;
}

void SlotScheduler::EndAcquire() {
  // The next slot may wait for a buffer now.
  if (std::exchange(acquiring_, false)) NoteMore();
}

void SlotScheduler::NoteChange() {
  NoteMore();
  control_wakes_ = true;
}

FetchPtr SlotScheduler::TakeArrived() {
  if (arrived_.empty()) return nullptr;
  FetchPtr fetch = std::move(arrived_.front());
  arrived_.pop_front();
  // This slot takes one step: another wakes only where there is a second.
  slots_wake_ = more_to_take_ || !arrived_.empty();
  return fetch;
}

FetchPtr SlotScheduler::TakeToAwait() {
  if (placing_.empty() || awaiting_) return nullptr;
  FetchPtr fetch = std::move(placing_.front());
  // One slot awaits at a time, in the order of the copies: the others have something else to do.
  placing_.pop_front();
  awaiting_ = true;
  slots_wake_ = more_to_take_;
  return fetch;
}

bool SlotScheduler::MayTake(int slots, int under_way) const {
  if (!buffers_) return true;
  // While one waits for a buffer another has to be there to give buffers back.
  return !acquiring_ && (slots > 1 || under_way == 0);
}

void SlotScheduler::Took(bool any) {
  if (any) {
    acquiring_ = buffers_;
    slots_wake_ = more_to_take_;
  } else {
    more_to_take_ = false;
  }
}

void SlotScheduler::Sleep(bool control, bool slot) {
  if (control) control_wakes_ = false;
  if (slot) slots_wake_ = false;
}

}  // namespace tensorcast
