// The daemon's end of the ring through which a client streams the image of a put. The ring is memory that the
// daemon makes and seals against shrinking. The daemon requests pieces of the image in any order, one piece
// in each slot. The client fills the slots (ring_filler.h).
//
// The client can write to the whole ring at any time. The daemon therefore keeps its requests in its own
// memory, and reads only RingSlot::done and the bytes in the slots. Callers must digest a copy of these
// bytes.
//
// Thread-safe, except that one thread at a time may use a slot.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/posix/unique_fd.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/handles/ring_memory.h"
#include "core/handles/ring_room.h"
#include "core/memory/host_pool.h"
#include "core/memory/reserved_range.h"

namespace tensorcast {

class PutRing {
 public:
  // `connection` is a duplicate of the client's socket. RESOURCE_EXHAUSTED if this process lacks memory or
  // descriptors; also for an empty `connection`, which means that the duplication failed.
  static absl::StatusOr<std::shared_ptr<PutRing>> Create(RingShape shape, absl::Duration stall_timeout,
                                                         RingRoom::Hold room, UniqueFd connection);
  // Gives the memory of the slots back to the system, even if the client still has it mapped.
  ~PutRing();
  PutRing(const PutRing&) = delete;
  PutRing& operator=(const PutRing&) = delete;

  RingShape shape() const { return shape_; }
  int fd() const { return memory_.get(); }  // sealed SHRINK | GROW

  // Requests image bytes in a slot. REQUIRES: the bytes fit in the slot, and asked(slot) is false.
  void Ask(uint32_t slot, uint64_t image_offset, uint32_t bytes);
  // True from Ask of this slot until Await of this slot.
  bool asked(uint32_t slot) const { return slots_[slot].asked; }
  // Blocks until the slot is filled, and returns the requested bytes. The bytes remain valid until the next
  // Ask of this slot, but the client may change them. `what` names the operation in messages. UNAVAILABLE:
  // the client is gone. DEADLINE_EXCEEDED: the client filled no slot for `stall_timeout`. INVALID_ARGUMENT:
  // the client violates the protocol. If the context ends, its error is returned.
  absl::StatusOr<ConstHostSpan> Await(const RequestContext& context, uint32_t slot, std::string_view what);

  // Notes that the client is gone: Await then fails for each slot that the client has not filled.
  void NoteClosed() { closed_.store(true); }
  // Ends the client's connection. The server then releases its reference to this object.
  void End();

 private:
  struct Slot {
    uint32_t sequence = 0;  // of the last request
    uint32_t bytes = 0;
    bool asked = false;
    SteadyTime since;
  };

  PutRing(RingShape shape, absl::Duration stall_timeout, RingRoom::Hold room, UniqueFd connection,
          UniqueFd memory, ReservedRange mapping);
  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(mapping_.base()); }

  const RingRoom::Hold room_;  // declared first, so that the room is given back after the memory
  const RingShape shape_;
  const absl::Duration stall_timeout_;
  const UniqueFd connection_;
  const UniqueFd memory_;
  const ReservedRange mapping_;
  std::vector<Slot> slots_;
  std::atomic<bool> closed_ = false;
  const SteadyTime made_ = SteadyNow();
  std::atomic<int64_t> progress_ns_ = 0;  // from made_ to the last time a slot was found filled
};

}  // namespace tensorcast
