#include "core/memory/host_pool.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/memory/extent_allocator.h"
#include "core/memory/host_limits.h"
#include "core/memory/shared_region.h"

namespace tensorcast {
namespace {

// Written so that no input overflows.
uint64_t GranulesFor(uint64_t bytes) { return bytes / kGranuleBytes + (bytes % kGranuleBytes != 0 ? 1 : 0); }

absl::StatusOr<SharedRegion> MakeRegion(const HostPool::Options& options) {
  if (options.use_huge_pages && options.bytes <= FreeHugePageBytes()) {
    // Set aside already, so neither counted as available nor taken from anybody.
    auto region = SharedRegion::Create(GranulesFor(options.bytes) * kGranuleBytes, /*huge_pages=*/true);
    if (region.ok()) return region;
    LOG(WARNING) << "host pool: ordinary pages, though huge ones seemed free: " << region.status().message();
  }
  // Before the rounding, which would wrap for a size near 2^64.
  TC_RETURN_IF_ERROR(CheckFits(options.bytes, options.prefault_threads > 0, ReadHostLimits()));
  return SharedRegion::Create(GranulesFor(options.bytes) * kGranuleBytes, /*huge_pages=*/false);
}

}  // namespace

struct HostPool::State {
  State(SharedRegion memory, int prefault_threads)
      : region(std::move(memory)),
        allocator(region.bytes() / kGranuleBytes),
        prefaulter(region, prefault_threads) {}

  const SharedRegion region;
  mutable absl::Mutex mutex;
  ExtentAllocator allocator ABSL_GUARDED_BY(mutex);
  uint64_t high_water_bytes ABSL_GUARDED_BY(mutex) = 0;
  uint64_t failed_allocations ABSL_GUARDED_BY(mutex) = 0;
  Prefaulter prefaulter;  // last: its threads end before what they touch

  uint64_t free_bytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return allocator.free_granules() * kGranuleBytes;
  }
  uint64_t used_bytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return region.bytes() - free_bytes(); }
};

HostAllocation::HostAllocation(HostPool* pool, uint64_t bytes, std::vector<Extent> extents)
    : pool_(pool), bytes_(bytes), extents_(std::move(extents)) {}

HostAllocation::HostAllocation(HostAllocation&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      extents_(std::exchange(other.extents_, {})) {}

HostAllocation& HostAllocation::operator=(HostAllocation&& other) noexcept {
  if (this != &other) {
    HostAllocation old(std::move(*this));
    pool_ = std::exchange(other.pool_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    extents_ = std::exchange(other.extents_, {});
  }
  return *this;
}

HostAllocation::~HostAllocation() {
  if (pool_ != nullptr) pool_->Free(extents_);
}

std::vector<HostSpan> HostAllocation::Spans(uint64_t offset, uint64_t bytes) const {
  CHECK(offset <= bytes_ && bytes <= bytes_ - offset)
      << "bytes " << offset << " + " << bytes << " of an allocation of " << bytes_;
  std::vector<HostSpan> spans;
  for (const Extent& extent : extents_) {
    if (bytes == 0) break;
    if (offset >= extent.bytes) {
      offset -= extent.bytes;
      continue;
    }
    const uint64_t here = std::min(bytes, extent.bytes - offset);
    spans.emplace_back(pool_->base() + extent.offset + offset, here);
    bytes -= here;
    offset = 0;
  }
  return spans;
}

absl::StatusOr<std::unique_ptr<HostPool>> HostPool::Create(const Options& options) {
  if (options.bytes == 0 || options.prefault_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a host pool needs a size and no negative number of threads, not ", options.bytes,
                     " bytes and ", options.prefault_threads, " pre-fault threads"));
  }
  TC_ASSIGN_OR_RETURN(SharedRegion region, MakeRegion(options));
  return std::unique_ptr<HostPool>(
      new HostPool(std::make_unique<State>(std::move(region), options.prefault_threads)));
}

HostPool::HostPool(std::unique_ptr<State> state) : state_(std::move(state)) {}

HostPool::~HostPool() { CHECK_EQ(stats().used_bytes, 0u) << "a host allocation outlives its pool"; }

absl::StatusOr<HostAllocation> HostPool::Allocate(uint64_t bytes) {
  const uint64_t granules = GranulesFor(bytes);
  absl::MutexLock lock(&state_->mutex);
  std::optional<std::vector<GranuleRange>> ranges = state_->allocator.Allocate(granules);
  if (!ranges.has_value()) {
    ++state_->failed_allocations;
    return absl::ResourceExhaustedError(absl::StrCat("the host pool is full: wanted ", bytes, " bytes, free ",
                                                     state_->free_bytes(), " of ", state_->region.bytes(),
                                                     " (in granules of ", kGranuleBytes,
                                                     "); release or evict replicas, or enlarge the pool"));
  }
  state_->high_water_bytes = std::max(state_->high_water_bytes, state_->used_bytes());
  std::vector<Extent> extents;
  extents.reserve(ranges->size());
  for (const GranuleRange& range : *ranges) {
    extents.push_back({range.first * kGranuleBytes, range.count * kGranuleBytes});
  }
  return HostAllocation(this, bytes, std::move(extents));
}

void HostPool::Free(const std::vector<Extent>& extents) {
  absl::MutexLock lock(&state_->mutex);
  for (const Extent& extent : extents) {
    state_->allocator.Free({extent.offset / kGranuleBytes, extent.bytes / kGranuleBytes});
  }
}

std::byte* HostPool::base() const { return state_->region.base(); }
uint64_t HostPool::bytes() const { return state_->region.bytes(); }
int HostPool::fd() const { return state_->region.fd(); }
bool HostPool::huge_pages() const { return state_->region.huge_pages(); }
bool HostPool::prefaulted() const { return state_->prefaulter.complete(); }
void HostPool::WaitPrefaulted() { state_->prefaulter.Wait(); }

PoolStats HostPool::stats() const {
  absl::MutexLock lock(&state_->mutex);
  return {.capacity_bytes = state_->region.bytes(),
          .used_bytes = state_->used_bytes(),
          .high_water_bytes = state_->high_water_bytes,
          .failed_allocations = state_->failed_allocations};
}

}  // namespace tensorcast
