// The daemon's end of the ring through which a client streams the image of a put: small memory that the
// daemon makes and seals, so that it cannot shrink under a read. The daemon asks for pieces of the image,
// each in a slot, in the order in which it wants them; the client fills them (ring_filler.h).
//
// The client can write to the whole ring at any time. Therefore no value in the ring decides where the daemon
// reads or writes: this process keeps the requests itself, and compares a slot's answer, one number, with
// them. Bytes in a slot are trusted only after they were copied and the copy was digested.
//
// Thread-safe; each slot is used by one thread at a time.
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
  // `connection` is the client's; End closes it. A client that fills no requested slot for `stall_timeout` is
  // given up. RESOURCE_EXHAUSTED if this process lacks memory or descriptors; an empty `connection` says that
  // it lacked one for that.
  static absl::StatusOr<std::shared_ptr<PutRing>> Create(RingShape shape, absl::Duration stall_timeout,
                                                         RingRoom::Hold room, UniqueFd connection);
  // Gives the memory of the slots back to the system, whatever the client still has mapped.
  ~PutRing();
  PutRing(const PutRing&) = delete;
  PutRing& operator=(const PutRing&) = delete;

  RingShape shape() const { return shape_; }
  int fd() const { return memory_.get(); }  // sealed SHRINK | GROW

  // Asks for image bytes in a slot. REQUIRES: they fit, and the slot is idle.
  void Ask(uint32_t slot, uint64_t image_offset, uint32_t bytes);
  // Whether the slot was requested and the answer not awaited yet. Meanwhile the client may write to the
  // slot.
  bool asked(uint32_t slot) const { return slots_[slot].asked; }
  // Blocks until the slot is filled; then the slot is idle and has the requested bytes. UNAVAILABLE when the
  // client is gone, DEADLINE_EXCEEDED when it stalls, INVALID_ARGUMENT when it breaks the protocol, else the
  // error of the context. `what` is the purpose, for messages.
  absl::StatusOr<ConstHostSpan> Await(const RequestContext& context, uint32_t slot, std::string_view what);

  // The client is gone: from now on Await fails.
  void NoteClosed() { closed_.store(true); }
  // Ends the reading: closes the client's connection, which gives up the room.
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

  const RingRoom::Hold room_;  // first: given back when the memory is gone
  const RingShape shape_;
  const absl::Duration stall_timeout_;
  const UniqueFd connection_;
  const UniqueFd memory_;
  const ReservedRange mapping_;
  std::vector<Slot> slots_;
  std::atomic<bool> closed_ = false;
  const SteadyTime made_ = SteadyNow();
  std::atomic<int64_t> progress_ns_ = 0;  // after made_: when a slot was last found filled
};

}  // namespace tensorcast
