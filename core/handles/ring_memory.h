// The memory of a put's ring (FORMAT.md): a page with requests and answers, then the slots. Daemon and client
// map the memory, and both may change it at any time: read each value once, then check the value. Internal to
// this folder.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tensorcast {

struct RingShape {
  uint32_t slots = 0;
  uint32_t slot_bytes = 0;  // whole pages

  // The shape of the ring for an image. All slots together have at most 8 MiB, so that they fit in the
  // processor's caches. A small image gets fewer slots.
  static RingShape For(uint64_t image_bytes);
  // INVALID_ARGUMENT for a shape that no daemon makes.
  absl::Status Check() const;
  // The size of the whole memory, including the first page.
  uint64_t bytes() const;
  friend bool operator==(const RingShape&, const RingShape&) = default;
};

// One request of the daemon and the client's answer to it.
struct alignas(64) RingSlot {
  std::atomic<uint64_t> image_offset;
  std::atomic<uint32_t> bytes;
  std::atomic<uint32_t> asked;  // the request's number; grows by one. Written after the two fields above
  std::atomic<uint32_t> done;   // the number of the last served request; the daemon sleeps on it (futex)
};

inline constexpr size_t kRingHeaderBytes = 4096;
inline constexpr uint32_t kMaxRingSlots = kRingHeaderBytes / sizeof(RingSlot) - 1;

struct RingHeader {
  alignas(64) std::atomic<uint32_t> posted;  // grows with each request; the client sleeps on it (futex)
  std::array<RingSlot, kMaxRingSlots> slots;
};
static_assert(sizeof(RingHeader) == kRingHeaderBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

// Sleeps (futex(2)) while `word` equals `value`, at most for `limit`. May return early.
void SleepWhile(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration limit);
// Wakes up to `sleepers` threads that sleep on `word`, in any process.
void WakeSleepers(const std::atomic<uint32_t>& word, int sleepers);

}  // namespace tensorcast
