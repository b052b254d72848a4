#include "core/memory/host_pool.h"

#include <algorithm>
#include <iterator>
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

GranuleRange GranulesOf(ByteRange range) {
  const uint64_t first = range.offset / kGranuleBytes;
  return {first, GranulesFor(range.offset + range.bytes) - first};
}

// The granules that hold bytes of the ranges, each once, in ascending order and joined where they touch.
std::vector<GranuleRange> GranulesOf(std::span<const ByteRange> ranges) {
  std::vector<GranuleRange> all;
  for (const ByteRange& range : ranges) {
    if (range.bytes > 0) all.push_back(GranulesOf(range));
  }
  std::ranges::sort(all, {}, &GranuleRange::first);
  std::vector<GranuleRange> joined;
  for (const GranuleRange& next : all) {
    if (joined.empty() || joined.back().first + joined.back().count < next.first) {
      joined.push_back(next);
      continue;
    }
    GranuleRange& last = joined.back();
    last.count = std::max(last.first + last.count, next.first + next.count) - last.first;
  }
  return joined;
}

uint64_t CountOf(const std::vector<GranuleRange>& ranges) {
  uint64_t count = 0;
  for (const GranuleRange& range : ranges) count += range.count;
  return count;
}

uint64_t ImageEnd(const ImageExtent& extent) { return extent.image_offset + extent.extent.bytes; }

// The extent that holds the image's byte at `offset`, or the first one behind it.
std::vector<ImageExtent>::const_iterator ExtentAt(const std::vector<ImageExtent>& extents, uint64_t offset) {
  const auto behind = std::ranges::upper_bound(extents, offset, {}, &ImageExtent::image_offset);
  return behind != extents.begin() && ImageEnd(*std::prev(behind)) > offset ? std::prev(behind) : behind;
}

GranuleRange ImageGranules(const ImageExtent& extent) {
  return {extent.image_offset / kGranuleBytes, extent.extent.bytes / kGranuleBytes};
}

// The image's granules among `wanted` that the extents do not hold, in ascending order.
std::vector<GranuleRange> Missing(const std::vector<GranuleRange>& wanted,
                                  const std::vector<ImageExtent>& extents) {
  std::vector<GranuleRange> missing;
  for (const GranuleRange& range : wanted) {
    uint64_t next = range.first;
    const uint64_t end = range.first + range.count;
    for (auto at = ExtentAt(extents, next * kGranuleBytes); next < end; ++at) {
      const uint64_t held_from = at == extents.end() ? end : std::min(end, ImageGranules(*at).first);
      if (held_from > next) missing.push_back({next, held_from - next});
      if (held_from == end) break;
      next = ImageGranules(*at).first + ImageGranules(*at).count;
    }
  }
  return missing;
}

// Gives the image's granules `places` those of the pool, in order. Both are equally many.
std::vector<ImageExtent> Lay(const std::vector<GranuleRange>& places, const std::vector<GranuleRange>& pool) {
  std::vector<ImageExtent> extents;
  auto source = pool.begin();
  uint64_t used = 0;  // of *source
  for (const GranuleRange& place : places) {
    for (uint64_t done = 0; done < place.count;) {
      const uint64_t count = std::min(place.count - done, source->count - used);
      extents.push_back({(place.first + done) * kGranuleBytes,
                         {(source->first + used) * kGranuleBytes, count * kGranuleBytes}});
      done += count;
      used += count;
      if (used == source->count) {
        ++source;
        used = 0;
      }
    }
  }
  return extents;
}

// Puts extents of one image in its order, and joins those that touch in the image and in one segment.
std::vector<ImageExtent> Joined(std::vector<ImageExtent> extents, uint64_t segment_bytes) {
  std::ranges::sort(extents, {}, &ImageExtent::image_offset);
  std::vector<ImageExtent> joined;
  for (const ImageExtent& next : extents) {
    if (!joined.empty() && ImageEnd(joined.back()) == next.image_offset &&
        joined.back().extent.offset + joined.back().extent.bytes == next.extent.offset &&
        next.extent.offset % segment_bytes != 0) {
      joined.back().extent.bytes += next.extent.bytes;
    } else {
      joined.push_back(next);
    }
  }
  return joined;
}

void CheckInImage(uint64_t image_bytes, ByteRange range) {
  CHECK(range.offset <= image_bytes && range.bytes <= image_bytes - range.offset)
      << "bytes " << range.offset << " + " << range.bytes << " of an allocation of " << image_bytes;
}

// The same as granules of the image. REQUIRES: the ranges lie in it.
std::vector<GranuleRange> GranulesInImage(uint64_t image_bytes, std::span<const ByteRange> ranges) {
  for (const ByteRange& range : ranges) CheckInImage(image_bytes, range);
  return GranulesOf(ranges);
}

absl::StatusOr<SharedRegion> MakeRegion(const HostPool::Options& options) {
  if (options.use_huge_pages && options.bytes <= FreeHugePageBytes()) {
    // Set aside already, so neither counted as available nor taken from anybody.
    auto region = SharedRegion::Create(GranulesFor(options.bytes) * kGranuleBytes, options.segment_bytes,
                                       SharedRegion::Pages::kHugeSetAside);
    if (region.ok()) return region;
    LOG(WARNING) << "host pool: ordinary pages, though huge ones seemed free: " << region.status().message();
  }
  // Before the rounding, which would wrap for a size near 2^64.
  TC_RETURN_IF_ERROR(
      CheckFits(options.bytes, options.segment_bytes, options.prefault_threads > 0, ReadHostLimits()));
  return SharedRegion::Create(
      GranulesFor(options.bytes) * kGranuleBytes, options.segment_bytes,
      options.use_huge_pages ? SharedRegion::Pages::kHugeWhereMade : SharedRegion::Pages::kOrdinary);
}

}  // namespace

struct HostPool::State {
  State(SharedRegion memory, int prefault_threads)
      : region(std::move(memory)),
        allocator(region.bytes() / kGranuleBytes, region.segment_bytes() / kGranuleBytes),
        further_references(region.bytes() / kGranuleBytes),
        prefaulter(region, prefault_threads) {
    for (uint64_t offset = 0; offset < region.bytes(); offset += region.segment_bytes()) {
      const uint64_t bytes = std::min(region.segment_bytes(), region.bytes() - offset);
      segments.push_back({offset, bytes, region.fd(segments.size())});
    }
  }

  const SharedRegion region;
  std::vector<PoolSegment> segments;  // fixed once made
  mutable absl::Mutex mutex;
  ExtentAllocator allocator ABSL_GUARDED_BY(mutex);
  // Of each granule: allocations that name it beyond the first. Few granules are shared at a time, and while
  // none is nobody looks through them.
  std::vector<uint32_t> further_references ABSL_GUARDED_BY(mutex);
  uint64_t all_further_references ABSL_GUARDED_BY(mutex) = 0;  // the sum
  uint64_t high_water_bytes ABSL_GUARDED_BY(mutex) = 0;
  uint64_t failed_allocations ABSL_GUARDED_BY(mutex) = 0;
  Prefaulter prefaulter;  // last: its threads end before what they touch

  uint64_t free_bytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return allocator.free_granules() * kGranuleBytes;
  }
  uint64_t used_bytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return region.bytes() - free_bytes(); }

  // So many granules that nobody has, with one reference. `wanted_bytes`: for the message.
  absl::StatusOr<std::vector<GranuleRange>> Take(uint64_t granules, uint64_t wanted_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AddReferences(Extent extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Gives back the granules that nobody names any more.
  void DropReferences(Extent extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

absl::StatusOr<std::vector<GranuleRange>> HostPool::State::Take(uint64_t granules, uint64_t wanted_bytes) {
  std::optional<std::vector<GranuleRange>> ranges = allocator.Allocate(granules);
  if (!ranges.has_value()) {
    ++failed_allocations;
    return absl::ResourceExhaustedError(absl::StrCat(
        "the host pool is full: wanted ", wanted_bytes, " bytes, free ", free_bytes(), " of ", region.bytes(),
        " (in granules of ", kGranuleBytes, "); release or evict replicas, or enlarge the pool"));
  }
  high_water_bytes = std::max(high_water_bytes, used_bytes());
  return *std::move(ranges);
}

void HostPool::State::AddReferences(Extent extent) {
  const uint64_t first = extent.offset / kGranuleBytes;
  const uint64_t count = extent.bytes / kGranuleBytes;
  for (uint64_t granule = first; granule < first + count; ++granule) ++further_references[granule];
  all_further_references += count;
}

void HostPool::State::DropReferences(Extent extent) {
  GranuleRange unnamed{extent.offset / kGranuleBytes, extent.bytes / kGranuleBytes};
  if (all_further_references > 0) {
    const uint64_t end = unnamed.first + unnamed.count;
    unnamed.count = 0;
    for (uint64_t granule = unnamed.first; granule < end; ++granule) {
      if (further_references[granule] == 0) {
        ++unnamed.count;
        continue;
      }
      --further_references[granule];
      --all_further_references;
      allocator.Free(unnamed);
      unnamed = {granule + 1, 0};
    }
  }
  allocator.Free(unnamed);
}

HostAllocation::HostAllocation(HostPool* pool, uint64_t bytes, std::vector<ImageExtent> extents)
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
  if (pool_ != nullptr) pool_->Release(extents_);
}

bool HostAllocation::Covers(uint64_t offset, uint64_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) return false;
  const uint64_t end = offset + bytes;
  for (auto at = ExtentAt(extents_, offset); offset < end; ++at) {
    if (at == extents_.end() || at->image_offset > offset) return false;
    offset = ImageEnd(*at);
  }
  return true;
}

std::vector<HostSpan> HostAllocation::Spans(uint64_t offset, uint64_t bytes) const {
  CheckInImage(bytes_, {offset, bytes});
  std::vector<HostSpan> spans;
  const uint64_t end = offset + bytes;
  for (auto at = ExtentAt(extents_, offset); offset < end; ++at) {
    CHECK(at != extents_.end() && at->image_offset <= offset)
        << "byte " << offset << " of an allocation of " << bytes_ << " has no memory";
    const uint64_t skip = offset - at->image_offset;
    const uint64_t here = std::min(end - offset, at->extent.bytes - skip);
    spans.emplace_back(pool_->base() + at->extent.offset + skip, here);
    offset += here;
  }
  return spans;
}

uint64_t HostAllocation::MissingBytes(std::span<const ByteRange> ranges) const {
  return CountOf(Missing(GranulesInImage(bytes_, ranges), extents_)) * kGranuleBytes;
}

HostAllocation HostAllocation::Only(std::span<const ByteRange> ranges) const {
  const std::vector<GranuleRange> wanted = GranulesInImage(bytes_, ranges);
  if (pool_ == nullptr) return {};
  std::vector<ImageExtent> kept;
  for (const GranuleRange& range : wanted) {
    const uint64_t begin = range.first * kGranuleBytes;
    const uint64_t end = begin + range.count * kGranuleBytes;
    for (auto at = ExtentAt(extents_, begin); at != extents_.end() && at->image_offset < end; ++at) {
      const uint64_t first = std::max(begin, at->image_offset);
      kept.push_back(
          {first, {at->extent.offset + (first - at->image_offset), std::min(end, ImageEnd(*at)) - first}});
    }
  }
  return pool_->Share(bytes_, std::move(kept));
}

uint64_t GranuleBytes(std::span<const ByteRange> ranges) {
  return CountOf(GranulesOf(ranges)) * kGranuleBytes;
}

absl::StatusOr<std::unique_ptr<HostPool>> HostPool::Create(const Options& options) {
  if (options.bytes == 0 || options.prefault_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a host pool needs a size and no negative number of threads, not ", options.bytes,
                     " bytes and ", options.prefault_threads, " pre-fault threads"));
  }
  if (options.segment_bytes == 0 || options.segment_bytes % kGranuleBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a host pool's segments are of whole granules of ",
                                                   kGranuleBytes, " bytes, not of ", options.segment_bytes));
  }
  TC_ASSIGN_OR_RETURN(SharedRegion region, MakeRegion(options));
  return std::unique_ptr<HostPool>(
      new HostPool(std::make_unique<State>(std::move(region), options.prefault_threads)));
}

HostPool::HostPool(std::unique_ptr<State> state) : state_(std::move(state)) {}

HostPool::~HostPool() { CHECK_EQ(stats().used_bytes, 0u) << "a host allocation outlives its pool"; }

absl::StatusOr<HostAllocation> HostPool::Allocate(uint64_t bytes) {
  return Add(bytes, {}, {{0, GranulesFor(bytes)}}, bytes);
}

absl::StatusOr<HostAllocation> HostPool::Allocate(uint64_t image_bytes, std::span<const ByteRange> ranges) {
  const std::vector<GranuleRange> granules = GranulesInImage(image_bytes, ranges);
  return Add(image_bytes, {}, granules, CountOf(granules) * kGranuleBytes);
}

absl::StatusOr<HostAllocation> HostPool::Grow(const HostAllocation& allocation,
                                              std::span<const ByteRange> ranges) {
  CHECK_EQ(allocation.pool_, this) << "an allocation of another pool";
  const std::vector<GranuleRange> missing =
      Missing(GranulesInImage(allocation.bytes(), ranges), allocation.extents());
  return Add(allocation.bytes(), allocation.extents(), missing, CountOf(missing) * kGranuleBytes);
}

absl::StatusOr<HostAllocation> HostPool::Add(uint64_t image_bytes, const std::vector<ImageExtent>& shared,
                                             const std::vector<GranuleRange>& granules,
                                             uint64_t wanted_bytes) {
  absl::MutexLock lock(&state_->mutex);
  TC_ASSIGN_OR_RETURN(const std::vector<GranuleRange> taken, state_->Take(CountOf(granules), wanted_bytes));
  std::vector<ImageExtent> extents = Lay(granules, taken);
  if (!shared.empty()) {
    for (const ImageExtent& part : shared) state_->AddReferences(part.extent);
    extents.insert(extents.end(), shared.begin(), shared.end());
    extents = Joined(std::move(extents), state_->region.segment_bytes());
  }
  return HostAllocation(this, image_bytes, std::move(extents));
}

HostAllocation HostPool::Share(uint64_t image_bytes, std::vector<ImageExtent> extents) {
  absl::MutexLock lock(&state_->mutex);
  for (const ImageExtent& part : extents) state_->AddReferences(part.extent);
  return HostAllocation(this, image_bytes, std::move(extents));
}

void HostPool::Release(const std::vector<ImageExtent>& extents) {
  absl::MutexLock lock(&state_->mutex);
  for (const ImageExtent& part : extents) state_->DropReferences(part.extent);
}

std::byte* HostPool::base() const { return state_->region.base(); }
uint64_t HostPool::bytes() const { return state_->region.bytes(); }
const std::vector<PoolSegment>& HostPool::segments() const { return state_->segments; }
bool HostPool::huge_pages() const { return state_->region.pages() == SharedRegion::Pages::kHugeSetAside; }
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
