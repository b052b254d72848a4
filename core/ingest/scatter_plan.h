// What turns the image of one version into that of another in its place: the values that differ, and where
// they belong. Made while the earlier image is read, and written in a moment when it is not.
//
// Values are absolute and compared in words of four bytes, so element types do not matter, and writing them
// twice is harmless. They are kept by blocks of 256 KiB: six bytes for each word that differs, or all of the
// block where more than a third of its words do. At 1.4 % changed elements of bf16 that is 4 % of the image.
// The memory is allocated a granule at a time.
//
// Add is thread-safe. Scatter may be called once all is added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

class ScatterPlan {
 public:
  // Gives so many bytes in one piece: a granule. Called by Add, under a lock.
  using Allocate = std::function<absl::StatusOr<HostAllocation>(uint64_t bytes)>;

  explicit ScatterPlan(Allocate allocate) : allocate_(std::move(allocate)) {}

  // At `offset` of the image is `there`, and shall be `wanted`, which may go after the call. The errors of
  // Allocate. REQUIRES: both have one size, and `there` is one piece of the memory that is written later.
  absl::Status Add(uint64_t offset, std::span<const std::byte> there, std::span<const std::byte> wanted);

  // Writes what was added, on up to `threads` threads.
  void Scatter(const HostAllocation& image, int threads) const;

  uint64_t kept_bytes() const;  // values and their places

 private:
  struct Block {
    uint64_t offset = 0;  // in the image
    uint32_t bytes = 0;   // of the block
    uint32_t words = 0;   // that differ; 0: all of it is kept
    const std::byte* kept = nullptr;
  };
  struct Encoder;

  static void Write(const Block& block, std::byte* place);
  // Keeps a copy of the parts, one after the other.
  absl::Status Keep(Block block, std::span<const std::byte> first, std::span<const std::byte> second);

  const Allocate allocate_;
  mutable absl::Mutex mutex_;
  std::vector<HostAllocation> memory_ ABSL_GUARDED_BY(mutex_);
  std::span<std::byte> free_ ABSL_GUARDED_BY(mutex_);  // of the last
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Block> blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
