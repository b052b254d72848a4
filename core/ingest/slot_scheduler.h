// Decides which step a free slot of an ingest takes next, and which threads wake after an event.
//
// A slot is a thread. A free slot takes the first of these steps that is possible:
//   1. verify a chunk that has arrived, and begin to place it
//   2. await the chunk that has been in placement the longest; only one slot at a time does this
//   3. request another chunk; if chunks need buffers, only one slot at a time waits for a buffer
//
// After a step, a slot asks for the next step itself. So other slots wake only if there are several steps to
// take. This class wakes the control thread if a source joins or leaves, or if no source has a missing chunk.
//
// Has no threads and no clock; the ingest's mutex guards it. Thread-compatible.
#pragma once

#include <deque>

#include "core/ingest/chunk_fetch.h"

namespace tensorcast {

class SlotScheduler {
 public:
  // `buffers` is true if chunks need buffers.
  explicit SlotScheduler(bool buffers) : buffers_(buffers) {}

  // --- events
  void AddArrived(FetchPtr fetch);  // the chunk's fetch has ended
  void AddPlacing(FetchPtr fetch);  // the chunk is being placed
  void EndAwait() { awaiting_ = false; }
  // The chunk that was taken last has its buffer, or needs none.
  void EndAcquire();
  void NoteMore() { more_to_take_ = slots_wake_ = true; }  // there may be another chunk to take
  void NoteChange();                                       // as NoteMore, and wakes the control thread
  void WakeSlot() { slots_wake_ = true; }
  void WakeControl() { control_wakes_ = true; }

  // --- the next step of a slot, in this order; null if there is no step of this kind
  FetchPtr TakeArrived();
  FetchPtr TakeToAwait();  // the caller must then call EndAwait
  // Whether another chunk may be requested while `under_way` chunks are in flight and `slots` slots run. If
  // true, the caller must call Took; `any` says whether the caller took a chunk.
  bool MayTake(int slots, int under_way) const;
  void Took(bool any);

  // Whether every chunk in flight waits for its source, and not for a buffer or its placement.
  bool all_with_sources() const { return !acquiring_ && arrived_.empty() && placing_.empty(); }

  // --- sleeping: call Sleep, then block until MayWake. A thread can be a slot, the control thread, or both.
  void Sleep(bool control, bool slot);
  bool MayWake(bool control, bool slot) const { return (control && control_wakes_) || (slot && slots_wake_); }

 private:
  const bool buffers_;
  std::deque<FetchPtr> arrived_;
  std::deque<FetchPtr> placing_;
  bool awaiting_ = false;      // a slot waits for one of `placing_`
  bool acquiring_ = false;     // a slot waits for a buffer
  bool more_to_take_ = false;  // there may be another chunk to take
  bool slots_wake_ = false;
  bool control_wakes_ = false;
};

}  // namespace tensorcast
