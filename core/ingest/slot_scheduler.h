// Which chunk a free slot of an ingest continues with, and which threads wake for what happened.
//
// A slot is a thread that takes one step after the other: first a chunk that arrived, which it verifies and
// places; else it awaits the chunk that has been on the way to its place the longest, one slot at a time;
// else it takes another chunk to request. Where chunks need buffers, one slot at a time waits for one: the
// others place what arrives, which gives buffers back.
//
// A slot that has taken a step returns for the next. So a step wakes other slots only where there is more
// than one to take, and not for each chunk. The thread in control wakes for what only it handles: sources
// that came, went, or have nothing.
//
// An account without threads or a clock, kept under the ingest's mutex. Thread-compatible.
#pragma once

#include <deque>

#include "core/ingest/chunk_fetch.h"

namespace tensorcast {

class SlotScheduler {
 public:
  // `buffers`: chunks need them.
  explicit SlotScheduler(bool buffers) : buffers_(buffers) {}

  // --- what happened
  void AddArrived(FetchPtr fetch);  // its fetch ended
  void AddPlacing(FetchPtr fetch);  // it is on the way to its place
  void EndAwait() { awaiting_ = false; }
  // The chunk that was taken last has its buffer, or needs none.
  void EndAcquire();
  void NoteMore() { more_to_take_ = slots_wake_ = true; }  // there may be another chunk to take
  void NoteChange();                                       // the same, and it is for control, too
  void WakeSlot() { slots_wake_ = true; }
  void WakeControl() { control_wakes_ = true; }

  // --- the next step of a slot, in this order; null: there is none of this kind
  FetchPtr TakeArrived();
  FetchPtr TakeToAwait();  // EndAwait follows
  // Whether another chunk may be requested while so many are under way and this many slots run; then Took
  // says whether one was.
  bool MayTake(int slots, int under_way) const;
  void Took(bool any);

  // Whether all that is under way is with the sources: nothing waits for a buffer or for its place.
  bool all_with_sources() const { return !acquiring_ && arrived_.empty() && placing_.empty(); }

  // --- sleeping: Sleep, and then until MayWake. A thread can be a slot, in control, or both.
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
