#include "core/handles/ring_room.h"

#include <unistd.h>

namespace tensorcast {

RingRoom::Hold RingRoom::Take(uint64_t bytes) {
  uint64_t used = used_bytes_.load();
  do {
    // A ring that is larger than the whole room gets through when nothing else is used: it would wait for
    // ever.
    if (used > 0 && (bytes > total_bytes_ || used > total_bytes_ - bytes)) return nullptr;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return {this, [room = shared_from_this(), bytes](void*) { room->GiveBack(bytes); }};
}

void RingRoom::GiveBack(uint64_t bytes) {
  used_bytes_.fetch_sub(bytes);
  const uint64_t one = 1;
  // It fails only when the counter is full, and then the reader wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

}  // namespace tensorcast
