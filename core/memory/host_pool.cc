#include "core/memory/host_pool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "base/status.h"
#include "core/memory/extent_allocator.h"
#include "core/memory/host_limits.h"
#include "core/memory/numa_policy.h"
#include "core/memory/shared_region.h"
#include "core/memory/small_extents.h"

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

// The smallest piece that a client can map.
uint64_t PageBytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t WholePages(uint64_t bytes) { return (bytes + PageBytes() - 1) / PageBytes() * PageBytes(); }

bool IsSmallImage(uint64_t image_bytes) { return image_bytes > 0 && image_bytes <= kMaxSmallBytes; }

// Extents are of whole granules or of a small image.
bool IsSmall(const Extent& extent) { return extent.bytes < kGranuleBytes; }

uint64_t ImageEnd(const ImageExtent& extent) { return extent.image_offset + extent.extent.bytes; }

// The extent that holds the image's byte at `offset`, or the first one behind it.
std::vector<ImageExtent>::const_iterator ExtentAt(const std::vector<ImageExtent>& extents, uint64_t offset) {
  const auto behind = std::ranges::upper_bound(extents, offset, {}, &ImageExtent::image_offset);
  return behind != extents.begin() && ImageEnd(*std::prev(behind)) > offset ? std::prev(behind) : behind;
}

GranuleRange ImageGranules(const ImageExtent& extent) {
  return {extent.image_offset / kGranuleBytes, GranulesFor(extent.extent.bytes)};
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

// Whether another process can neither write to it nor take its pages away.
bool IsSealed(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kPoolSeals) == kPoolSeals;
}

uint64_t FileBytes(int fd) {
  struct stat file{};
  return fstat(fd, &file) == 0 ? static_cast<uint64_t>(file.st_size) : 0;
}

uint64_t PlaceBytes(uint64_t bytes, uint64_t segment_bytes, size_t place) {
  return std::min(segment_bytes, bytes - place * segment_bytes);
}

// The place of each kept segment in a pool of so many bytes: names and descriptors, empty where there is
// none.
std::vector<KeptSegment> PlaceKept(uint64_t bytes, uint64_t segment_bytes, std::vector<KeptSegment> kept) {
  std::vector<KeptSegment> places((bytes + segment_bytes - 1) / segment_bytes);
  for (KeptSegment& segment : kept) {
    if (segment.fd && !IsSealed(segment.fd.get())) continue;
    for (size_t i = 0; i < places.size(); ++i) {
      const bool fits = !segment.fd || FileBytes(segment.fd.get()) == PlaceBytes(bytes, segment_bytes, i);
      if (!places[i].name.empty() || !fits) continue;
      places[i] = std::move(segment);
      break;
    }
  }
  return places;
}

absl::StatusOr<SharedRegion> MakeRegion(const HostPool::Options& options, std::vector<KeptSegment>& places,
                                        const std::vector<bool>& stays_empty) {
  const uint64_t bytes = GranulesFor(options.bytes) * kGranuleBytes;
  uint64_t new_bytes = options.bytes;
  std::vector<SharedRegion::Place> kept;
  for (size_t i = 0; i < places.size(); ++i) {
    KeptSegment& place = places[i];
    if (!place.name.empty()) new_bytes -= std::min(new_bytes, PlaceBytes(bytes, options.segment_bytes, i));
    kept.push_back({.kept = std::move(place.fd), .stays_empty = stays_empty[i]});
  }
  if (options.use_huge_pages && new_bytes > 0 && new_bytes <= FreeHugePageBytes()) {
    // Set aside already, so neither counted as available nor taken from other processes.
    std::vector<SharedRegion::Place> copies;
    copies.reserve(kept.size());
    for (const auto& [fd, empty] : kept) {
      copies.push_back({UniqueFd(fd ? fcntl(fd.get(), F_DUPFD_CLOEXEC, 0) : -1), empty});
    }
    auto region = SharedRegion::Create(bytes, options.segment_bytes, SharedRegion::Pages::kHugeSetAside,
                                       std::move(copies), options.numa_nodes);
    if (region.ok()) return region;
    LOG(WARNING) << "host pool: ordinary pages, though huge ones seemed free: " << region.status().message();
  }
  TC_RETURN_IF_ERROR(
      CheckFits(new_bytes, options.segment_bytes, options.prefault_threads > 0, ReadHostLimits()));
  return SharedRegion::Create(
      bytes, options.segment_bytes,
      options.use_huge_pages ? SharedRegion::Pages::kHugeWhereMade : SharedRegion::Pages::kOrdinary,
      std::move(kept), options.numa_nodes);
}

}  // namespace

struct HostPool::State {
  // Of `kept` only the names are there.
  State(SharedRegion memory, const Options& options, const std::vector<KeptSegment>& kept,
        const std::vector<bool>& stays_empty)
      : region(std::move(memory)),
        before_replaced(options.before_replaced),
        on_replaced(options.on_replaced),
        allocator(region.bytes() / kGranuleBytes, region.segment_bytes() / kGranuleBytes),
        further_references(region.bytes() / kGranuleBytes),
        share_granules(options.share_granules && region.pages() != SharedRegion::Pages::kHugeSetAside),
        prefaulter(region, options.prefault_threads) {
    for (uint64_t offset = 0; offset < region.bytes(); offset += region.segment_bytes()) {
      const uint64_t bytes = std::min(region.segment_bytes(), region.bytes() - offset);
      const std::string& name = kept[segments.size()].name;
      if (!name.empty()) allocator.TakeSegment(segments.size());
      places.push_back({.name = name.empty() ? NewUuid() : name,
                        .kept = !name.empty(),
                        .room = stays_empty[segments.size()]});
      segments.push_back({offset, bytes, region.fd(segments.size())});
    }
  }

  struct Place {
    std::string name;
    bool kept = false;
    bool room = false;  // of a kept one: there is no memory
    // Of a kept one: granules and small extents that allocations name, each as often as it is named.
    uint64_t adopted = 0;
  };

  SharedRegion region;
  const decltype(Options::before_replaced) before_replaced;
  const decltype(Options::on_replaced) on_replaced;
  std::vector<PoolSegment> segments;  // fixed once made
  mutable absl::Mutex mutex;
  ExtentAllocator allocator ABSL_GUARDED_BY(mutex);
  // Of each granule: allocations that name it beyond the first. Few granules are shared at a time, and while
  // none is shared the loops over them are skipped.
  std::vector<uint32_t> further_references ABSL_GUARDED_BY(mutex);
  uint64_t all_further_references ABSL_GUARDED_BY(mutex) = 0;  // the sum
  SmallExtents small ABSL_GUARDED_BY(mutex){PageBytes()};      // of granules that the allocator handed out
  std::string id ABSL_GUARDED_BY(mutex) = NewUuid();
  std::vector<Place> places ABSL_GUARDED_BY(mutex);  // one a segment
  const bool share_granules;
  bool replaces ABSL_GUARDED_BY(mutex) = true;
  uint64_t high_water_bytes ABSL_GUARDED_BY(mutex) = 0;
  uint64_t failed_allocations ABSL_GUARDED_BY(mutex) = 0;
  Prefaulter prefaulter;  // last: its threads end before what they touch

  uint64_t free_bytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return allocator.free_granules() * kGranuleBytes;
  }
  uint64_t used_bytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return region.bytes() - free_bytes(); }

  // So many free granules, with one reference. `wanted_bytes`: for the message.
  absl::StatusOr<std::vector<GranuleRange>> Take(uint64_t granules, uint64_t wanted_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NoteUse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    high_water_bytes = std::max(high_water_bytes, used_bytes());
  }
  void AddReferences(Extent extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Gives back the granules that are not named any more; those of a kept segment all at once, when it is
  // replaced. True when that is due.
  bool DropReferences(Extent extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  size_t SegmentOf(Extent extent) const { return extent.offset / region.segment_bytes(); }
};

absl::StatusOr<std::vector<GranuleRange>> HostPool::State::Take(uint64_t granules, uint64_t wanted_bytes) {
  std::optional<std::vector<GranuleRange>> ranges = allocator.Allocate(granules);
  if (!ranges.has_value()) {
    ++failed_allocations;
    return absl::ResourceExhaustedError(absl::StrCat(
        "the host pool is full: wanted ", wanted_bytes, " bytes, free ", free_bytes(), " of ", region.bytes(),
        " (in granules of ", kGranuleBytes, "); release or evict replicas, or enlarge the pool"));
  }
  NoteUse();
  return *std::move(ranges);
}

void HostPool::State::AddReferences(Extent extent) {
  if (IsSmall(extent)) {
    Place& place = places[SegmentOf(extent)];
    if (place.kept) {
      ++place.adopted;
    } else {
      small.AddReference(extent);
    }
    return;
  }
  const uint64_t first = extent.offset / kGranuleBytes;
  const uint64_t count = extent.bytes / kGranuleBytes;
  for (uint64_t granule = first; granule < first + count; ++granule) ++further_references[granule];
  all_further_references += count;
  if (Place& place = places[SegmentOf(extent)]; place.kept) place.adopted += count;
}

bool HostPool::State::DropReferences(Extent extent) {
  if (IsSmall(extent)) {
    Place& place = places[SegmentOf(extent)];
    if (place.kept) return --place.adopted == 0 && replaces;
    if (const std::optional<uint64_t> granule = small.DropReference(extent)) allocator.Free({*granule, 1});
    return false;
  }
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
  Place& place = places[SegmentOf(extent)];
  if (!place.kept) return false;
  place.adopted -= extent.bytes / kGranuleBytes;
  return place.adopted == 0 && replaces;
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

absl::StatusOr<std::unique_ptr<HostPool>> HostPool::Create(Options options) {
  if (options.bytes == 0 || options.prefault_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a host pool needs a size and no negative number of threads, not ", options.bytes,
                     " bytes and ", options.prefault_threads, " pre-fault threads"));
  }
  if (options.segment_bytes == 0 || options.segment_bytes % kGranuleBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a host pool's segments are of whole granules of ",
                                                   kGranuleBytes, " bytes, not of ", options.segment_bytes));
  }
  // Checked before the rounding, which would wrap for a size near 2^64.
  TC_RETURN_IF_ERROR(CheckFits(options.bytes, options.segment_bytes, /*prefaulted=*/false, ReadHostLimits()));
  std::vector<KeptSegment> places =
      PlaceKept(GranulesFor(options.bytes) * kGranuleBytes, options.segment_bytes, std::move(options.kept));
  std::vector<bool> stays_empty;
  stays_empty.reserve(places.size());
  for (const KeptSegment& place : places) stays_empty.push_back(!place.name.empty() && !place.fd);
  TC_ASSIGN_OR_RETURN(SharedRegion region, MakeRegion(options, places, stays_empty));
  return std::unique_ptr<HostPool>(
      new HostPool(std::make_unique<State>(std::move(region), options, places, stays_empty)));
}

HostPool::HostPool(std::unique_ptr<State> state) : state_(std::move(state)) {}

HostPool::~HostPool() {
  absl::MutexLock lock(&state_->mutex);
  uint64_t kept_bytes = 0;
  for (size_t i = 0; i < state_->places.size(); ++i) {
    const State::Place& place = state_->places[i];
    if (place.kept && place.adopted == 0) kept_bytes += state_->segments[i].bytes;
  }
  CHECK_EQ(state_->used_bytes(), kept_bytes) << "a host allocation outlives its pool";
}

absl::StatusOr<HostAllocation> HostPool::Allocate(uint64_t bytes) {
  return Add(bytes, {}, {{0, GranulesFor(bytes)}}, bytes);
}

absl::StatusOr<HostAllocation> HostPool::AllocateNear(uint64_t bytes, int numa_node) {
  if (const uint64_t granules = GranulesFor(bytes); granules > 0) {
    absl::MutexLock lock(&state_->mutex);
    const std::optional<GranuleRange> taken =
        state_->allocator.AllocateWhere(granules, [this, numa_node](uint64_t segment) {
          return PreferredNumaNode(base() + state_->segments[segment].offset) == numa_node;
        });
    if (taken.has_value()) {
      state_->NoteUse();
      return HostAllocation(this, bytes, Lay({{0, granules}}, {*taken}));
    }
  }
  return Allocate(bytes);
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
  if (shared.empty() && CountOf(granules) > 0 && Shares(image_bytes)) return AddSmall(image_bytes);
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

absl::StatusOr<HostAllocation> HostPool::AddSmall(uint64_t image_bytes) {
  absl::MutexLock lock(&state_->mutex);
  std::optional<Extent> piece = state_->small.Allocate(image_bytes);
  if (!piece.has_value()) {
    TC_ASSIGN_OR_RETURN(const std::vector<GranuleRange> taken, state_->Take(1, image_bytes));
    state_->small.AddGranule(taken.front().first);
    piece = state_->small.Allocate(image_bytes);
  }
  return HostAllocation(this, image_bytes, {{0, *piece}});
}

HostAllocation HostPool::Share(uint64_t image_bytes, std::vector<ImageExtent> extents) {
  absl::MutexLock lock(&state_->mutex);
  for (const ImageExtent& part : extents) state_->AddReferences(part.extent);
  return HostAllocation(this, image_bytes, std::move(extents));
}

void HostPool::Release(const std::vector<ImageExtent>& extents) {
  std::vector<size_t> unused;
  {
    absl::MutexLock lock(&state_->mutex);
    for (const ImageExtent& part : extents) {
      if (state_->DropReferences(part.extent)) unused.push_back(state_->SegmentOf(part.extent));
    }
  }
  for (const size_t segment : unused) Replace(segment);
}

// No allocation names the segment, and none will: all of it stays taken until it has gone.
void HostPool::Replace(size_t segment) {
  const PoolSegment& place = state_->segments[segment];
  if (state_->before_replaced) state_->before_replaced(place);
  if (const absl::Status made = state_->region.Replace(segment); !made.ok()) {
    LOG(ERROR) << "host pool: a kept segment without replicas could not be replaced and stays: " << made;
    return;
  }
  const std::string name = NewUuid();
  std::string gone;
  {
    absl::MutexLock lock(&state_->mutex);
    gone = std::exchange(state_->places[segment].name, name);
  }
  if (state_->on_replaced) state_->on_replaced(place, name, gone);
  absl::MutexLock lock(&state_->mutex);
  state_->places[segment].kept = false;
  state_->id = NewUuid();
  state_->allocator.Free({place.offset / kGranuleBytes, place.bytes / kGranuleBytes});
}

absl::StatusOr<HostAllocation> HostPool::Adopt(uint64_t image_bytes, std::span<const NamedExtent> extents) {
  absl::MutexLock lock(&state_->mutex);
  std::vector<ImageExtent> found;
  uint64_t next = 0;
  for (const NamedExtent& extent : extents) {
    const auto place = std::ranges::find(state_->places, extent.segment, &State::Place::name);
    if (place == state_->places.end() || !place->kept) {
      return absl::InvalidArgumentError(absl::StrCat("segment ", extent.segment, " was not kept"));
    }
    const PoolSegment& segment = state_->segments[place - state_->places.begin()];
    const uint64_t unit = IsSmallImage(image_bytes) ? PageBytes() : kGranuleBytes;
    if (extent.image_offset != next || next >= image_bytes || extent.bytes == 0 ||
        extent.bytes > segment.bytes || extent.offset > segment.bytes - extent.bytes ||
        extent.bytes % unit != 0 || extent.offset % unit != 0) {
      return absl::InvalidArgumentError(absl::StrCat("bytes ", extent.offset, " + ", extent.bytes,
                                                     " of segment ", extent.segment, " for those from ",
                                                     extent.image_offset, " of an image of ", image_bytes));
    }
    found.push_back({extent.image_offset, {segment.offset + extent.offset, extent.bytes}});
    next += extent.bytes;
  }
  if (next < image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("an image of ", image_bytes, " bytes ends at ", next));
  }
  for (const ImageExtent& part : found) state_->AddReferences(part.extent);
  return HostAllocation(this, image_bytes, std::move(found));
}

std::vector<NamedExtent> HostPool::Named(const HostAllocation& allocation) const {
  absl::MutexLock lock(&state_->mutex);
  std::vector<NamedExtent> named;
  for (const ImageExtent& part : allocation.extents()) {
    const size_t segment = state_->SegmentOf(part.extent);
    named.push_back({part.image_offset, state_->places[segment].name,
                     part.extent.offset - state_->segments[segment].offset, part.extent.bytes});
  }
  return named;
}

void HostPool::DropUnusedKept() {
  std::vector<size_t> unused;
  {
    absl::MutexLock lock(&state_->mutex);
    for (size_t i = 0; i < state_->places.size(); ++i) {
      if (state_->places[i].kept && state_->places[i].adopted == 0) unused.push_back(i);
    }
  }
  for (const size_t segment : unused) Replace(segment);
}

void HostPool::StopReplacing() {
  absl::MutexLock lock(&state_->mutex);
  state_->replaces = false;
}

std::string HostPool::segment_name(size_t segment) const {
  absl::MutexLock lock(&state_->mutex);
  return state_->places[segment].name;
}

std::string HostPool::id() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->id;
}

SegmentKind HostPool::kind(size_t segment) const {
  absl::MutexLock lock(&state_->mutex);
  const State::Place& place = state_->places[segment];
  return !place.kept ? SegmentKind::kOwn : place.room ? SegmentKind::kRoom : SegmentKind::kKept;
}

bool HostPool::Shares(uint64_t image_bytes) const {
  return state_->share_granules && IsSmallImage(image_bytes);
}

uint64_t HostPool::BytesFor(uint64_t image_bytes) const {
  return Shares(image_bytes) ? WholePages(image_bytes) : GranulesFor(image_bytes) * kGranuleBytes;
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
          .small_free_bytes = state_->small.free_bytes(),
          .high_water_bytes = state_->high_water_bytes,
          .failed_allocations = state_->failed_allocations};
}

}  // namespace tensorcast
