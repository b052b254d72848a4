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
#include "base/ids.h"
#include "base/status.h"
#include "core/memory/extent_allocator.h"
#include "core/memory/host_limits.h"
#include "core/memory/numa_policy.h"
#include "core/memory/shared_region.h"
#include "core/memory/small_extents.h"

namespace tensorcast {
namespace {

bool IsSmallImage(uint64_t image_bytes) { return image_bytes > 0 && image_bytes <= kMaxSmallBytes; }

// Extents are of whole granules or of a small image.
bool IsSmall(const Extent& extent) { return extent.bytes < kGranuleBytes; }

absl::StatusOr<SharedRegion> MakeRegion(const HostPool::Options& options, std::vector<KeptSegment>& places) {
  const uint64_t bytes = GranulesFor(options.bytes) * kGranuleBytes;
  uint64_t new_bytes = options.bytes;
  // Only new segments have to fit. A kept segment has its memory already, and the place of a segment without
  // a descriptor gets none for now.
  for (size_t i = 0; i < places.size(); ++i) {
    const uint64_t here = std::min(options.segment_bytes, bytes - i * options.segment_bytes);
    if (!places[i].name.empty()) new_bytes -= std::min(new_bytes, here);
  }
  const auto make = [&](SharedRegion::Pages pages) {
    return SharedRegion::Create(bytes, options.segment_bytes, pages, places, options.numa_nodes);
  };
  if (options.use_huge_pages && new_bytes > 0 && new_bytes <= FreeHugePageBytes()) {
    // Reserved huge pages are not part of the available memory and are taken from no other process, so
    // CheckFits is not asked.
    auto region = make(SharedRegion::Pages::kHugeSetAside);
    if (region.ok()) return region;
    LOG(WARNING) << "make the host pool of huge pages: it gets ordinary ones: " << region.status().message();
  }
  TC_RETURN_IF_ERROR(
      CheckFits(new_bytes, options.segment_bytes, options.prefault_threads > 0, ReadHostLimits()));
  return make(options.use_huge_pages ? SharedRegion::Pages::kHugeWhereMade : SharedRegion::Pages::kOrdinary);
}

}  // namespace

// A granule is free (the allocator has it), or taken with one reference, or taken with further references.
// The first reference belongs to the allocation that took the granule; in a kept segment it belongs to the
// state of being kept. Allocations that share the granule add the further ones. A granule goes back to the
// allocator with its last reference; a kept segment goes back as a whole, when no allocation names it and a
// new memfd has replaced it.
struct HostPool::State {
  // Of `kept_segments` only the names are there: SharedRegion::Create has taken the descriptors.
  State(SharedRegion memory, const Options& options, const std::vector<KeptSegment>& kept_segments, Kept kept)
      : region(std::move(memory)),
        before_replaced(std::move(kept.before_replaced)),
        on_replaced(std::move(kept.on_replaced)),
        allocator(region.bytes() / kGranuleBytes, region.segment_bytes() / kGranuleBytes),
        further_references(region.bytes() / kGranuleBytes),
        share_granules(options.share_granules && region.pages() != SharedRegion::Pages::kHugeSetAside),
        prefaulter(region, options.prefault_threads) {
    for (size_t i = 0; i < kept_segments.size(); ++i) {
      const std::string& name = kept_segments[i].name;
      // All of it counts as used until it is replaced, since nothing can be written there.
      if (!name.empty()) allocator.TakeSegment(i);
      places.push_back({.name = name.empty() ? NewUuid() : name, .kind = region.first_kind(i)});
      segments.push_back({i * region.segment_bytes(), region.bytes_at(i), region.fd(i)});
    }
  }

  struct Place {
    std::string name;
    SegmentKind kind = SegmentKind::kOwn;
    // In a kept segment: the granules and small extents that allocations name, each counted as often as it is
    // named.
    uint64_t adopted = 0;

    bool kept() const { return kind != SegmentKind::kOwn; }
    bool unused() const { return kept() && adopted == 0; }
  };

  SharedRegion region;
  const decltype(Kept::before_replaced) before_replaced;
  const decltype(Kept::on_replaced) on_replaced;
  std::vector<PoolSegment> segments;  // fixed once made
  // Held for the bookkeeping alone: no memory is mapped and no callback runs under it.
  mutable absl::Mutex mutex;
  ExtentAllocator allocator ABSL_GUARDED_BY(mutex);
  // For each granule, the number of allocations that name it beyond the first. Few granules are shared at a
  // time, and while none is shared the loops over them are skipped.
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

  // Takes this many free granules, with one reference each. `wanted_bytes` is for the error's message.
  absl::StatusOr<std::vector<GranuleRange>> Take(uint64_t granules, uint64_t wanted_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NoteUse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    high_water_bytes = std::max(high_water_bytes, used_bytes());
  }
  void AddReferences(Extent extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Gives back the granules that no allocation names any more. The granules of a kept segment go back all at
  // once, when it is replaced; returns true when that is due.
  bool DropReferences(Extent extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  size_t SegmentOf(Extent extent) const { return extent.offset / region.segment_bytes(); }
};

absl::StatusOr<std::vector<GranuleRange>> HostPool::State::Take(uint64_t granules, uint64_t wanted_bytes) {
  std::optional<std::vector<GranuleRange>> ranges = allocator.Allocate(granules);
  if (!ranges.has_value()) {
    ++failed_allocations;
    return absl::ResourceExhaustedError(absl::StrCat(
        "allocate ", wanted_bytes, " bytes in the host pool: ", free_bytes(), " of ", region.bytes(),
        " bytes are free, in granules of ", kGranuleBytes, "; evict replicas, or raise daemon.host_pool"));
  }
  NoteUse();
  return *std::move(ranges);
}

void HostPool::State::AddReferences(Extent extent) {
  if (IsSmall(extent)) {
    Place& place = places[SegmentOf(extent)];
    // Kept segments are not cut any further: it only counts how often they are named.
    if (place.kept()) {
      ++place.adopted;
    } else {
      small.AddReference(extent);
    }
    return;
  }
  const uint64_t first = extent.offset / kGranuleBytes;
  const uint64_t count = extent.bytes / kGranuleBytes;
  // The first reference is not counted here: the allocation that took the granule has it, or the state of
  // being kept.
  for (uint64_t granule = first; granule < first + count; ++granule) ++further_references[granule];
  all_further_references += count;
  if (Place& place = places[SegmentOf(extent)]; place.kept()) place.adopted += count;
}

bool HostPool::State::DropReferences(Extent extent) {
  if (IsSmall(extent)) {
    Place& place = places[SegmentOf(extent)];
    if (place.kept()) return --place.adopted == 0 && replaces;
    if (const std::optional<uint64_t> granule = small.DropReference(extent)) allocator.Free({*granule, 1});
    return false;
  }
  // In a kept segment, being kept is the first reference: nothing of it is given back here.
  GranuleRange unnamed{extent.offset / kGranuleBytes, extent.bytes / kGranuleBytes};
  if (all_further_references > 0) {
    const uint64_t end = unnamed.first + unnamed.count;
    // Granules that no other allocation names are collected, up to the next shared one.
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
  if (!place.kept()) return false;
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
    // The old extents are released at the end of this block, by the destructor of `old`.
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
    // A hole in front of the extent, or behind the last one.
    if (at == extents_.end() || at->image_offset > offset) return false;
    offset = ImageEnd(*at);
  }
  return true;
}

std::vector<HostSpan> HostAllocation::Spans(uint64_t offset, uint64_t bytes) const {
  CHECK(offset <= bytes_ && bytes <= bytes_ - offset)
      << "bytes " << offset << " + " << bytes << " of an allocation of " << bytes_;
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
  return CountOf(Missing(GranulesOf(bytes_, ranges), extents_)) * kGranuleBytes;
}

HostAllocation HostAllocation::Only(std::span<const ByteRange> ranges) const {
  const std::vector<GranuleRange> wanted = GranulesOf(bytes_, ranges);
  return pool_ == nullptr ? HostAllocation() : pool_->Share(bytes_, Cut(extents_, wanted));
}

uint64_t GranuleBytes(std::span<const ByteRange> ranges) {
  return CountOf(GranulesOf(std::numeric_limits<uint64_t>::max(), ranges)) * kGranuleBytes;
}

void HostPool::Options::Validate(Findings& findings) const {
  // The default is for hosts that run a daemon; where it does not fit, the start says so.
  if (bytes == Options().bytes || bytes <= FreeHugePageBytes()) return;
  findings.Add("daemon.host_pool", CheckFits(bytes, kSegmentBytes, /*prefaulted=*/false, ReadHostLimits()));
}

absl::StatusOr<std::unique_ptr<HostPool>> HostPool::Create(const Options& options, Kept kept) {
  if (options.bytes == 0 || options.prefault_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("make a host pool of ", options.bytes, " bytes with ", options.prefault_threads,
                     " pre-fault threads: it needs a size, and a number of threads from 0; set "
                     "daemon.host_pool"));
  }
  if (options.segment_bytes == 0 || options.segment_bytes % kGranuleBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("make a host pool in segments of ", options.segment_bytes,
                                                   " bytes: they are not whole granules; choose a ",
                                                   "multiple of ", kGranuleBytes));
  }
  // Checked before the rounding, which would wrap for a size near 2^64. MakeRegion checks again with what is
  // new.
  TC_RETURN_IF_ERROR(CheckFits(options.bytes, options.segment_bytes, /*prefaulted=*/false, ReadHostLimits()));
  std::vector<KeptSegment> places =
      PlaceKept(GranulesFor(options.bytes) * kGranuleBytes, options.segment_bytes, std::move(kept.segments));
  TC_ASSIGN_OR_RETURN(SharedRegion region, MakeRegion(options, places));
  return std::unique_ptr<HostPool>(
      new HostPool(std::make_unique<State>(std::move(region), options, places, std::move(kept))));
}

HostPool::HostPool(std::unique_ptr<State> state) : state_(std::move(state)) {}

HostPool::~HostPool() {
  absl::MutexLock lock(&state_->mutex);
  uint64_t kept_bytes = 0;
  // Kept segments count as used, also where nothing of them was adopted.
  for (size_t i = 0; i < state_->places.size(); ++i) {
    if (state_->places[i].unused()) kept_bytes += state_->segments[i].bytes;
  }
  CHECK_EQ(state_->used_bytes(), kept_bytes) << "a host allocation outlives its pool";
}

absl::StatusOr<HostAllocation> HostPool::Allocate(uint64_t bytes) {
  return Add(bytes, {}, {{0, GranulesFor(bytes)}}, bytes);
}

absl::StatusOr<HostAllocation> HostPool::AllocateNear(uint64_t bytes, int numa_node) {
  if (const uint64_t granules = GranulesFor(bytes); granules > 0) {
    absl::MutexLock lock(&state_->mutex);
    // The node is a preference: without such memory in one piece, any memory does. The policy of the mapping
    // answers, so a page need not exist yet.
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
  const std::vector<GranuleRange> granules = GranulesOf(image_bytes, ranges);
  return Add(image_bytes, {}, granules, CountOf(granules) * kGranuleBytes);
}

absl::StatusOr<HostAllocation> HostPool::Grow(const HostAllocation& allocation,
                                              std::span<const ByteRange> ranges) {
  CHECK_EQ(allocation.pool_, this) << "an allocation of another pool";
  const std::vector<GranuleRange> missing =
      Missing(GranulesOf(allocation.bytes(), ranges), allocation.extents());
  return Add(allocation.bytes(), allocation.extents(), missing, CountOf(missing) * kGranuleBytes);
}

absl::StatusOr<HostAllocation> HostPool::Add(uint64_t image_bytes, const std::vector<ImageExtent>& shared,
                                             const std::vector<GranuleRange>& granules,
                                             uint64_t wanted_bytes) {
  if (shared.empty() && CountOf(granules) > 0 && Shares(image_bytes)) return AddSmall(image_bytes);
  absl::MutexLock lock(&state_->mutex);
  TC_ASSIGN_OR_RETURN(const std::vector<GranuleRange> taken, state_->Take(CountOf(granules), wanted_bytes));
  std::vector<ImageExtent> extents = Lay(granules, taken);
  // The new allocation is another reference to what it shares. Joining the extents comes after that, since
  // references are counted for the shared ones alone.
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
  // Without the lock: this maps memory and calls the owner. No allocation can take the segment in between,
  // since its granules stay taken.
  for (const size_t segment : unused) Replace(segment);
}

// No allocation names the segment, and none will: all of it stays taken until it has gone.
void HostPool::Replace(size_t segment) {
  const PoolSegment& place = state_->segments[segment];
  // The owner is told before the old memory goes, and of the new name before anything is allocated there.
  if (state_->before_replaced) state_->before_replaced(place);
  if (const absl::Status made = state_->region.Replace(segment); !made.ok()) {
    LOG(ERROR) << "replace a segment of the host pool that an earlier daemon kept: its " << place.bytes
               << " bytes stay unused: " << made;
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
  state_->places[segment].kind = SegmentKind::kOwn;
  // Readers know a segment by the pool's id and its number, so other memory needs another id.
  state_->id = NewUuid();
  state_->allocator.Free({place.offset / kGranuleBytes, place.bytes / kGranuleBytes});
}

absl::StatusOr<HostAllocation> HostPool::Adopt(uint64_t image_bytes, std::span<const NamedExtent> extents) {
  absl::MutexLock lock(&state_->mutex);
  std::vector<ImageExtent> found;
  uint64_t next = 0;
  for (const NamedExtent& extent : extents) {
    // The extents come from a file of an earlier process, so each is checked like input from outside.
    const auto place = std::ranges::find(state_->places, extent.segment, &State::Place::name);
    if (place == state_->places.end() || !place->kept()) {
      return absl::InvalidArgumentError(absl::StrCat("take back segment ", extent.segment,
                                                     " of an earlier daemon: it was not kept; get the "
                                                     "artifact again"));
    }
    const PoolSegment& segment = state_->segments[place - state_->places.begin()];
    const uint64_t unit = IsSmallImage(image_bytes) ? PageBytes() : kGranuleBytes;
    if (extent.image_offset != next || next >= image_bytes || extent.bytes == 0 ||
        extent.bytes > segment.bytes || extent.offset > segment.bytes - extent.bytes ||
        extent.bytes % unit != 0 || extent.offset % unit != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("take back segment ", extent.segment, " of an earlier daemon: its ", extent.bytes,
                       " bytes at ", extent.offset, " cannot be those from ", extent.image_offset,
                       " on of an image of ", image_bytes, "; get the artifact again"));
    }
    found.push_back({extent.image_offset, {segment.offset + extent.offset, extent.bytes}});
    next += extent.bytes;
  }
  if (next < image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("take back an image of ", image_bytes,
                                                   " bytes of an earlier daemon: its extents end ", "at ",
                                                   next, "; get the artifact again"));
  }
  // Only when all was checked: an error leaves the pool as it was.
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
      if (state_->places[i].unused()) unused.push_back(i);
    }
  }
  // No adopted allocation may end meanwhile: Release would replace the same segment a second time.
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
  return state_->places[segment].kind;
}

bool HostPool::Shares(uint64_t image_bytes) const {
  return state_->share_granules && IsSmallImage(image_bytes);
}

uint64_t HostPool::BytesFor(uint64_t image_bytes) const {
  return Shares(image_bytes) ? RoundUpToPages(image_bytes) : GranulesFor(image_bytes) * kGranuleBytes;
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
