#include "core/memory/small_extents.h"

#include <algorithm>

#include "absl/log/check.h"

namespace tensorcast {

std::optional<Extent> SmallExtents::Allocate(uint64_t bytes) {
  const uint64_t pages = (bytes + page_bytes_ - 1) / page_bytes_;
  // The first granule with room, so that later ones become free as a whole.
  for (auto& [number, granule] : granules_) {
    if (granule.free_pages < pages) continue;
    std::vector<bool>& taken = granule.taken;
    // Side by side, since a client maps the piece at once.
    const auto room = std::search_n(taken.begin(), taken.end(), pages, false);
    if (room == taken.end()) continue;
    std::fill_n(room, pages, true);
    granule.free_pages -= pages;
    free_bytes_ -= pages * page_bytes_;
    const uint64_t first = room - taken.begin();
    return Extent{number * kGranuleBytes + first * page_bytes_, pages * page_bytes_};
  }
  return std::nullopt;
}

void SmallExtents::AddGranule(uint64_t granule) {
  const uint64_t pages = kGranuleBytes / page_bytes_;
  const bool added = granules_.try_emplace(granule, Granule{std::vector<bool>(pages), pages}).second;
  CHECK(added) << "granule " << granule << " was handed over twice";
  free_bytes_ += kGranuleBytes;
}

void SmallExtents::AddReference(Extent piece) { ++further_[piece.offset]; }

std::optional<uint64_t> SmallExtents::DropReference(Extent piece) {
  // Without an entry there is one reference, the last.
  if (const auto shared = further_.find(piece.offset); shared != further_.end()) {
    if (--shared->second == 0) further_.erase(shared);
    return std::nullopt;
  }
  // The last reference: the pages become free.
  const auto at = granules_.find(piece.offset / kGranuleBytes);
  CHECK(at != granules_.end()) << "a piece at " << piece.offset << " of no granule that is cut";
  Granule& granule = at->second;
  const uint64_t pages = piece.bytes / page_bytes_;
  std::fill_n(granule.taken.begin() + static_cast<ptrdiff_t>(piece.offset % kGranuleBytes / page_bytes_),
              pages, false);
  granule.free_pages += pages;
  free_bytes_ += piece.bytes;
  if (granule.free_pages < granule.taken.size()) return std::nullopt;
  // The granule goes back whole, with all its free pages.
  free_bytes_ -= kGranuleBytes;
  const uint64_t number = at->first;
  granules_.erase(at);
  return number;
}

}  // namespace tensorcast
