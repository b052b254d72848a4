#include "core/handles/ring_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

// Together 8 MiB at most: a part of a processor's last cache.
constexpr uint32_t kSlots = 16;
constexpr uint32_t kSlotBytes = uint32_t{512} << 10;
constexpr uint32_t kMaxSlotBytes = uint32_t{16} << 20;
constexpr uint32_t kPageBytes = 4096;

// Without FUTEX_PRIVATE_FLAG: the sleepers are in other processes.
long Futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

RingShape RingShape::For(uint64_t image_bytes) {
  const uint64_t needed = (image_bytes + kSlotBytes - 1) / kSlotBytes;
  return {.slots = static_cast<uint32_t>(std::clamp<uint64_t>(needed, 1, kSlots)), .slot_bytes = kSlotBytes};
}

absl::Status RingShape::Check() const {
  const bool right_slots = slots > 0 && slots <= kMaxRingSlots;
  const bool right_bytes = slot_bytes > 0 && slot_bytes <= kMaxSlotBytes && slot_bytes % kPageBytes == 0;
  if (right_slots && right_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("make a ring of ", slots, " slots of ", slot_bytes, " bytes: a ring has 1 to ",
                   kMaxRingSlots, " slots, each of whole pages and at most ", kMaxSlotBytes,
                   " bytes; run the same TensorCast release in both processes"));
}

uint64_t RingShape::bytes() const { return kRingHeaderBytes + uint64_t{slots} * slot_bytes; }

// May return early, as a futex does: callers look at the word again.
void SleepWhile(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration limit) {
  if (limit == absl::InfiniteDuration()) {
    Futex(word, FUTEX_WAIT, value, nullptr);
    return;
  }
  const timespec timeout = absl::ToTimespec(std::max(limit, absl::ZeroDuration()));
  Futex(word, FUTEX_WAIT, value, &timeout);
}

void WakeSleepers(const std::atomic<uint32_t>& word, int sleepers) {
  Futex(word, FUTEX_WAKE, static_cast<uint32_t>(sleepers), nullptr);
}

}  // namespace tensorcast
