// The host pool: one memfd of pinned size that holds every host replica and every staging buffer of the
// daemon.
//
// It is mapped once, pre-faulted in the background, and sealed (SHRINK | GROW | FUTURE_WRITE | SEAL), so a
// process that is handed its descriptor can map it for reading only. CUDA and the transports register
// base()..base()+bytes() once.
//
// Space is handed out in extents of whole 2 MiB granules: contiguous where possible, in pieces otherwise, so
// an allocation no larger than the free granules never fails. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast {

inline constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;

// A piece of the pool: bytes from the pool's start.
struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

using HostSpan = std::span<std::byte>;
using ConstHostSpan = std::span<const std::byte>;

struct PoolStats {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;        // whole granules
  uint64_t high_water_bytes = 0;  // most ever used
  uint64_t failed_allocations = 0;
};

class HostPool;

// Owns its granules and gives them back when destroyed. Must not outlive its pool. Movable.
class HostAllocation {
 public:
  HostAllocation() = default;
  HostAllocation(HostAllocation&& other) noexcept;
  HostAllocation& operator=(HostAllocation&& other) noexcept;
  ~HostAllocation();

  uint64_t bytes() const { return bytes_; }  // as asked for
  const std::vector<Extent>& extents() const { return extents_; }

  // The memory behind bytes [offset, offset + bytes) of the allocation, in order: one span an extent touched.
  // REQUIRES: offset + bytes <= this->bytes().
  std::vector<HostSpan> Spans(uint64_t offset, uint64_t bytes) const;

 private:
  friend class HostPool;
  HostAllocation(HostPool* pool, uint64_t bytes, std::vector<Extent> extents);

  HostPool* pool_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<Extent> extents_;  // the last one may reach past bytes()
};

class HostPool {
 public:
  struct Options {
    uint64_t bytes = 0;          // rounded up to whole granules
    bool use_huge_pages = true;  // where the host has reserved enough of them; silently 4 KiB pages otherwise
    int prefault_threads = 1;    // 0: pages appear at first touch
  };

  // RESOURCE_EXHAUSTED when the host cannot give that much memory: more than it has, or, for a pool that is
  // pre-faulted, more than is available right now.
  static absl::StatusOr<std::unique_ptr<HostPool>> Create(const Options& options);
  // Stops the background pre-faulting. REQUIRES: no allocation is left (checked).
  ~HostPool();

  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // RESOURCE_EXHAUSTED, naming what is free, when fewer granules are. `bytes` may be 0.
  absl::StatusOr<HostAllocation> Allocate(uint64_t bytes);

  std::byte* base() const;
  uint64_t bytes() const;
  int fd() const;  // sealed; to be passed to readers
  bool huge_pages() const;
  // True once the background has touched every page. WaitPrefaulted blocks until the background has ended; it
  // leaves prefaulted() false when there was none, or memory ran out (logged) and the rest appears at first
  // touch.
  bool prefaulted() const;
  void WaitPrefaulted();
  PoolStats stats() const;

 private:
  friend class HostAllocation;
  struct State;
  explicit HostPool(std::unique_ptr<State> state);
  void Free(const std::vector<Extent>& extents);
  std::unique_ptr<State> state_;
};

}  // namespace tensorcast
