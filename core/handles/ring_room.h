// Limits the memory of the rings of all puts together. Thread-safe. Internal to this folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/posix/unique_fd.h"

namespace tensorcast {

class RingRoom : public std::enable_shared_from_this<RingRoom> {
 public:
  // Room for a ring. The destruction of the last copy, on any thread, gives the room back.
  using Hold = std::shared_ptr<void>;

  // `wake` is an eventfd, which is written to whenever room is given back.
  RingRoom(uint64_t total_bytes, UniqueFd wake) : total_bytes_(total_bytes), wake_(std::move(wake)) {}

  // Null if there is no room for `bytes`. A ring that is larger than the total gets room if it is the only
  // ring.
  Hold Take(uint64_t bytes);
  uint64_t used_bytes() const { return used_bytes_.load(); }

 private:
  void GiveBack(uint64_t bytes);

  const uint64_t total_bytes_;
  const UniqueFd wake_;
  std::atomic<uint64_t> used_bytes_ = 0;
};

}  // namespace tensorcast
