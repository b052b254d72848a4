// Decides which step a free slot of an ingest takes next, and which threads wake after an event.
//
// A slot is a thread that takes one step after the other. First it takes a chunk that arrived, to verify and
// place it. Otherwise it awaits the chunk that has been on the way to its place the longest; only one slot at
// a time does so. Otherwise it takes another chunk to request. If chunks need buffers, only one slot at a
// time waits for a buffer: the other slots place the chunks that arrive, which frees buffers.
//
// A slot that has taken a step returns for the next. A step therefore wakes other slots only if there are
// several steps to take, not for each chunk. The thread in control wakes only for sources that came, went, or
// have nothing.
//
// An account without threads or a clock, guarded by the ingest's mutex. Thread-compatible.
#pragma once

#include <deque>

#include "core/ingest/chunk_fetch.h"

namespace tensorcast {

class SlotScheduler {
 public:
  // `buffers`: chunks need buffers.
  explicit SlotScheduler(bool buffers) : buffers_(buffers) {}

  // --- what happened
  void AddArrived(FetchPtr fetch);  // its fetch ended
  void AddPlacing(FetchPtr fetch);  // it is on the way to its place
  void EndAwait() { awaiting_ = false; }
  // The chunk that was taken last has its buffer, or needs none.
  void EndAcquire();
  void NoteMore() { more_to_take_ = slots_wake_ = true; }  // there may be another chunk to take
  void NoteChange();                                       // as NoteMore, and wakes control, too
  void WakeSlot() { slots_wake_ = true; }
  void WakeControl() { control_wakes_ = true; }

  // --- the next step of a slot, in this order; null: there is none of this kind
  FetchPtr TakeArrived();
  FetchPtr TakeToAwait();  // EndAwait follows
  // Whether another chunk may be requested while `under_way` chunks are in flight and `slots` slots run. If
  // so, Took must follow and say whether a chunk was taken.
  bool MayTake(int slots, int under_way) const;
  void Took(bool any);

  // Whether all chunks in flight wait for their sources: none waits for a buffer or for its placement.
  bool all_with_sources() const { return !acquiring_ && arrived_.empty() && placing_.empty(); }

  // --- sleeping: call Sleep, then block until MayWake. A thread can be a slot, in control, or both.
  void Sleep(bool control, bool slot);
  bool MayWake(bool control, bool slot) const { return (control && control_wakes_) || (slot && slots_wake_); }

 private:
  const bool buffers_;
  std::deque<FetchPtr> arrived_;
  std::deque<FetchPtr> placing_;
  bool awaiting_ = false;      // a slot waits for one of `placing_`
  bool acquiring_ = false;     // a slot waits for a buffer
  bool more_to_take_ = false;  // more chunks than one, perhaps
  bool slots_wake_ = false;
  bool control_wakes_ = false;
};

}  // namespace tensorcast
