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
#include "core/memory/host_limits.h"
#include "core/memory/numa_policy.h"
#include "core/memory/pool_ledger.h"
#include "core/memory/shared_region.h"

namespace tensorcast {
namespace {

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
    LOG(WARNING) << "make the host pool of huge pages: the pool gets ordinary pages instead: "
                 << region.status().message();
  }
  TC_RETURN_IF_ERROR(
      CheckFits(new_bytes, options.segment_bytes, options.prefault_threads > 0, ReadHostLimits()));
  return make(options.use_huge_pages ? SharedRegion::Pages::kHugeWhereMade : SharedRegion::Pages::kOrdinary);
}

}  // namespace

// The memory, its accounts, and the threads that pre-fault it.
struct HostPool::State {
  // Of `kept_segments` only the names are there: SharedRegion::Create has taken the descriptors.
  State(SharedRegion memory, const Options& options, const std::vector<KeptSegment>& kept_segments, Kept kept)
      : region(std::move(memory)),
        before_replaced(std::move(kept.before_replaced)),
        on_replaced(std::move(kept.on_replaced)),
        ledger(region.bytes(), region.segment_bytes()),
        share_granules(options.share_granules && region.pages() != SharedRegion::Pages::kHugeSetAside),
        prefaulter(region, options.prefault_threads) {
    for (size_t i = 0; i < kept_segments.size(); ++i) {
      const std::string& name = kept_segments[i].name;
      if (!name.empty()) ledger.Keep(i, name, region.first_kind(i));
      segments.push_back({i * region.segment_bytes(), region.bytes_at(i), region.fd(i)});
    }
  }

  SharedRegion region;
  const decltype(Kept::before_replaced) before_replaced;
  const decltype(Kept::on_replaced) on_replaced;
  std::vector<PoolSegment> segments;  // fixed once made
  // Held for the bookkeeping alone: no memory is mapped and no callback runs under it.
  mutable absl::Mutex mutex;
  PoolLedger ledger ABSL_GUARDED_BY(mutex);
  const bool share_granules;
  Prefaulter prefaulter;  // last: its threads end before what they touch
};

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
  if (options.bytes == 0) {
    return absl::InvalidArgumentError(
        "make a host pool of 0 bytes: the size must be above 0; set daemon.host_pool");
  }
  if (options.prefault_threads < 0) {
    return absl::InvalidArgumentError(absl::StrCat("make a host pool with ", options.prefault_threads,
                                                   " pre-fault threads: the number must be 0 or more; choose "
                                                   "such a number"));
  }
  if (options.segment_bytes == 0 || options.segment_bytes % kGranuleBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("make a host pool in segments of ", options.segment_bytes,
                     " bytes: the size of a segment must be a positive multiple of ", kGranuleBytes,
                     "; choose such a size"));
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
  for (const size_t unused : state_->ledger.UnusedKept()) kept_bytes += state_->segments[unused].bytes;
  CHECK_EQ(state_->ledger.used_bytes(), kept_bytes) << "a host allocation outlives its pool";
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
        state_->ledger.TakeWhere(granules, [this, numa_node](uint64_t segment) {
          return PreferredNumaNode(base() + state_->segments[segment].offset) == numa_node;
        });
    if (taken.has_value()) return HostAllocation(this, bytes, Lay({{0, granules}}, {*taken}));
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
  TC_ASSIGN_OR_RETURN(const std::vector<GranuleRange> taken,
                      state_->ledger.Take(CountOf(granules), wanted_bytes));
  std::vector<ImageExtent> extents = Lay(granules, taken);
  // The new allocation is another reference to what it shares. Joining the extents comes after that, since
  // references are counted for the shared ones alone.
  if (!shared.empty()) {
    for (const ImageExtent& part : shared) state_->ledger.AddReferences(part.extent);
    extents.insert(extents.end(), shared.begin(), shared.end());
    extents = Joined(std::move(extents), state_->region.segment_bytes());
  }
  return HostAllocation(this, image_bytes, std::move(extents));
}

absl::StatusOr<HostAllocation> HostPool::AddSmall(uint64_t image_bytes) {
  absl::MutexLock lock(&state_->mutex);
  TC_ASSIGN_OR_RETURN(const Extent piece, state_->ledger.TakeSmall(image_bytes));
  return HostAllocation(this, image_bytes, {{0, piece}});
}

HostAllocation HostPool::Share(uint64_t image_bytes, std::vector<ImageExtent> extents) {
  absl::MutexLock lock(&state_->mutex);
  for (const ImageExtent& part : extents) state_->ledger.AddReferences(part.extent);
  return HostAllocation(this, image_bytes, std::move(extents));
}

void HostPool::Release(const std::vector<ImageExtent>& extents) {
  std::vector<size_t> unused;
  {
    absl::MutexLock lock(&state_->mutex);
    for (const ImageExtent& part : extents) {
      if (state_->ledger.DropReferences(part.extent)) unused.push_back(state_->ledger.SegmentOf(part.extent));
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
    LOG(ERROR) << "replace a segment of the host pool that an earlier daemon kept: " << place.bytes
               << " bytes of the pool stay unused: " << made;
    return;
  }
  const std::string name = NewUuid();
  std::string gone;
  {
    absl::MutexLock lock(&state_->mutex);
    gone = state_->ledger.Rename(segment, name);
  }
  if (state_->on_replaced) state_->on_replaced(place, name, gone);
  absl::MutexLock lock(&state_->mutex);
  state_->ledger.Replaced(segment);
}

absl::StatusOr<HostAllocation> HostPool::Adopt(uint64_t image_bytes, std::span<const NamedExtent> extents) {
  absl::MutexLock lock(&state_->mutex);
  TC_ASSIGN_OR_RETURN(std::vector<ImageExtent> found, state_->ledger.Adopt(image_bytes, extents));
  return HostAllocation(this, image_bytes, std::move(found));
}

std::vector<NamedExtent> HostPool::Named(const HostAllocation& allocation) const {
  absl::MutexLock lock(&state_->mutex);
  return state_->ledger.Named(allocation.extents());
}

void HostPool::DropUnusedKept() {
  std::vector<size_t> unused;
  {
    absl::MutexLock lock(&state_->mutex);
    unused = state_->ledger.UnusedKept();
  }
  // No adopted allocation may end meanwhile: Release would replace the same segment a second time.
  for (const size_t segment : unused) Replace(segment);
}

void HostPool::StopReplacing() {
  absl::MutexLock lock(&state_->mutex);
  state_->ledger.StopReplacing();
}

std::string HostPool::segment_name(size_t segment) const {
  absl::MutexLock lock(&state_->mutex);
  return state_->ledger.name(segment);
}

std::string HostPool::id() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->ledger.id();
}

SegmentKind HostPool::kind(size_t segment) const {
  absl::MutexLock lock(&state_->mutex);
  return state_->ledger.kind(segment);
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
          .used_bytes = state_->ledger.used_bytes(),
          .small_free_bytes = state_->ledger.small_free_bytes(),
          .high_water_bytes = state_->ledger.high_water_bytes(),
          .failed_allocations = state_->ledger.failures()};
}

}  // namespace tensorcast
