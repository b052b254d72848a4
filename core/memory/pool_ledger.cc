#include "core/memory/pool_ledger.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// Extents are of whole granules or of a small image.
bool IsSmall(const Extent& extent) { return extent.bytes < kGranuleBytes; }

}  // namespace

PoolLedger::PoolLedger(uint64_t bytes, uint64_t segment_bytes)
    : bytes_(bytes),
      segment_bytes_(segment_bytes),
      allocator_(bytes / kGranuleBytes, segment_bytes / kGranuleBytes),
      further_references_(bytes / kGranuleBytes),
      id_(NewUuid()) {
  for (uint64_t offset = 0; offset < bytes; offset += segment_bytes) places_.push_back({.name = NewUuid()});
}

// All of it counts as used until it is replaced, since nothing can be written there.
void PoolLedger::Keep(size_t segment, std::string name, SegmentKind kind) {
  allocator_.TakeSegment(segment);
  places_[segment] = {.name = std::move(name), .kind = kind};
}

absl::StatusOr<std::vector<GranuleRange>> PoolLedger::Take(uint64_t granules, uint64_t wanted_bytes) {
  std::optional<std::vector<GranuleRange>> ranges = allocator_.Allocate(granules);
  if (!ranges.has_value()) {
    ++failures_;
    return absl::ResourceExhaustedError(absl::StrCat(
        "allocate ", wanted_bytes, " bytes in the host pool: ", free_bytes(), " of ", bytes_,
        " bytes are free, in units of ", kGranuleBytes, " bytes; evict replicas, or raise daemon.host_pool"));
  }
  NoteUse();
  return *std::move(ranges);
}

std::optional<GranuleRange> PoolLedger::TakeWhere(uint64_t granules,
                                                  absl::FunctionRef<bool(uint64_t segment)> suits) {
  const std::optional<GranuleRange> taken = allocator_.AllocateWhere(granules, suits);
  if (taken.has_value()) NoteUse();
  return taken;
}

absl::StatusOr<Extent> PoolLedger::TakeSmall(uint64_t image_bytes) {
  std::optional<Extent> piece = small_.Allocate(image_bytes);
  if (!piece.has_value()) {
    TC_ASSIGN_OR_RETURN(const std::vector<GranuleRange> taken, Take(1, image_bytes));
    small_.AddGranule(taken.front().first);
    piece = small_.Allocate(image_bytes);
  }
  return *piece;
}

absl::StatusOr<std::vector<ImageExtent>> PoolLedger::Adopt(uint64_t image_bytes,
                                                           std::span<const NamedExtent> extents) {
  std::vector<ImageExtent> found;
  uint64_t next = 0;
  for (const NamedExtent& extent : extents) {
    // The extents come from a file of an earlier process, so each is checked like input from outside.
    const auto place = std::ranges::find(places_, extent.segment, &Place::name);
    if (place == places_.end() || !place->kept()) {
      return absl::InvalidArgumentError(
          absl::StrCat("take back segment ", extent.segment,
                       " of an earlier daemon: the segment was not kept; get the artifact again"));
    }
    const size_t segment = place - places_.begin();
    const uint64_t segment_bytes = BytesAt(segment);
    const uint64_t unit = IsSmallImage(image_bytes) ? PageBytes() : kGranuleBytes;
    if (extent.image_offset != next || next >= image_bytes || extent.bytes == 0 ||
        extent.bytes > segment_bytes || extent.offset > segment_bytes - extent.bytes ||
        extent.bytes % unit != 0 || extent.offset % unit != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "take back segment ", extent.segment, " of an earlier daemon: the record is not valid: it names ",
          extent.bytes, " bytes at segment offset ", extent.offset, " and image offset ", extent.image_offset,
          ", for an image of ", image_bytes, " bytes; get the artifact again"));
    }
    found.push_back({extent.image_offset, {segment * segment_bytes_ + extent.offset, extent.bytes}});
    next += extent.bytes;
  }
  if (next < image_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("take back an image that an earlier daemon kept: the record covers only the first ",
                     next, " of ", image_bytes, " bytes; get the artifact again"));
  }
  // Only when all was checked: an error leaves the pool as it was.
  for (const ImageExtent& part : found) AddReferences(part.extent);
  return found;
}

std::vector<NamedExtent> PoolLedger::Named(const std::vector<ImageExtent>& extents) const {
  std::vector<NamedExtent> named;
  for (const ImageExtent& part : extents) {
    const size_t segment = SegmentOf(part.extent);
    named.push_back({part.image_offset, places_[segment].name, part.extent.offset - segment * segment_bytes_,
                     part.extent.bytes});
  }
  return named;
}

void PoolLedger::AddReferences(Extent extent) {
  if (IsSmall(extent)) {
    Place& place = places_[SegmentOf(extent)];
    // Kept segments are not cut any further: it only counts how often they are named.
    if (place.kept()) {
      ++place.adopted;
    } else {
      small_.AddReference(extent);
    }
    return;
  }
  const uint64_t first = extent.offset / kGranuleBytes;
  const uint64_t count = extent.bytes / kGranuleBytes;
  // The first reference is not counted here: the allocation that took the granule has it, or the state of
  // being kept.
  for (uint64_t granule = first; granule < first + count; ++granule) ++further_references_[granule];
  all_further_references_ += count;
  if (Place& place = places_[SegmentOf(extent)]; place.kept()) place.adopted += count;
}

bool PoolLedger::DropReferences(Extent extent) {
  if (IsSmall(extent)) {
    Place& place = places_[SegmentOf(extent)];
    if (place.kept()) return --place.adopted == 0 && replaces_;
    if (const std::optional<uint64_t> granule = small_.DropReference(extent)) allocator_.Free({*granule, 1});
    return false;
  }
  // In a kept segment, being kept is the first reference: nothing of it is given back here.
  GranuleRange unnamed{extent.offset / kGranuleBytes, extent.bytes / kGranuleBytes};
  if (all_further_references_ > 0) {
    const uint64_t end = unnamed.first + unnamed.count;
    // Granules that no other allocation names are collected, up to the next shared one.
    unnamed.count = 0;
    for (uint64_t granule = unnamed.first; granule < end; ++granule) {
      if (further_references_[granule] == 0) {
        ++unnamed.count;
        continue;
      }
      --further_references_[granule];
      --all_further_references_;
      allocator_.Free(unnamed);
      unnamed = {granule + 1, 0};
    }
  }
  allocator_.Free(unnamed);
  Place& place = places_[SegmentOf(extent)];
  if (!place.kept()) return false;
  place.adopted -= extent.bytes / kGranuleBytes;
  return place.adopted == 0 && replaces_;
}

std::vector<size_t> PoolLedger::UnusedKept() const {
  std::vector<size_t> unused;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].unused()) unused.push_back(i);
  }
  return unused;
}

std::string PoolLedger::Rename(size_t segment, std::string name) {
  return std::exchange(places_[segment].name, std::move(name));
}

void PoolLedger::Replaced(size_t segment) {
  places_[segment].kind = SegmentKind::kOwn;
  // Readers know a segment by the pool's id and its number, so other memory needs another id.
  id_ = NewUuid();
  allocator_.Free({segment * segment_bytes_ / kGranuleBytes, BytesAt(segment) / kGranuleBytes});
}

}  // namespace tensorcast
