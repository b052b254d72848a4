// The claims that clients hold, and how many claims there are. LeaseCounts is thread-safe; the other values
// are used only on the server's thread. No function fails. Internal to this folder.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <variant>

#include "base/posix/unique_fd.h"
#include "core/handles/handles.h"

namespace tensorcast {

// Counts the held claims by holder and kind of memory.
class LeaseCounts {
 public:
  std::atomic<int>& of(const Claim& claim) {
    return counts_[static_cast<size_t>(claim.holder)][claim.handles.memory.index()];
  }
  std::array<int, 3> of(Holder holder) const {
    const auto& counts = counts_[static_cast<size_t>(holder)];
    return {counts[0], counts[1], counts[2]};
  }

 private:
  std::array<std::array<std::atomic<int>, 3>, 2> counts_{};
};

// A claim that a client holds; counted during its lifetime. The destructor releases the hold.
class HeldClaim {
 public:
  HeldClaim(Claim claim, LeaseCounts* counts) : claim_(std::move(claim)), count_(counts->of(claim_)) {
    count_.fetch_add(1);
  }
  ~HeldClaim() {
    // The hold is released before the count falls, so that a thread that sees the lower count finds the hold
    // released.
    claim_.hold.reset();
    count_.fetch_sub(1);
  }
  HeldClaim(const HeldClaim&) = delete;
  HeldClaim& operator=(const HeldClaim&) = delete;

  const Claim& claim() const { return claim_; }
  bool is_device() const { return std::holds_alternative<DeviceHandles>(claim_.handles.memory); }
  // Keeps `companion` until this object is destroyed.
  void Accompany(std::shared_ptr<void> companion) { companion_ = std::move(companion); }

 private:
  Claim claim_;
  std::shared_ptr<void> companion_;
  std::atomic<int>& count_;
};

// A claim on device memory that the client may still have open, because its connection ended without CLOSED.
// Held until the client's process is gone.
struct OrphanedClaim {
  UniqueFd process;  // pidfd
  std::unique_ptr<HeldClaim> held;
};

}  // namespace tensorcast
