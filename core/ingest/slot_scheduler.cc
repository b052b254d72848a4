#include "core/ingest/slot_scheduler.h"

#include <utility>

namespace tensorcast {

// `slots_wake_` is the condition of every sleeping slot. The slot that takes a step clears it unless there is
// a second step, so the others stay asleep; Sleep clears it when a slot has looked and found nothing.
// `more_to_take_` remembers that there may be chunks to request, until a slot has looked for one in vain
// (Took).
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

// `under_way == 0`: with no chunk in flight, no buffer of this ingest is to be given back, so the only slot
// may wait for one that another ingest holds.
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
