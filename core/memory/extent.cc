#include "core/memory/extent.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "absl/log/check.h"

namespace tensorcast {
namespace {

GranuleRange GranulesOf(ByteRange range) {
  const uint64_t first = range.offset / kGranuleBytes;
  return {first, GranulesFor(range.offset + range.bytes) - first};
}

GranuleRange ImageGranules(const ImageExtent& extent) {
  return {extent.image_offset / kGranuleBytes, GranulesFor(extent.extent.bytes)};
}

}  // namespace

uint64_t PageBytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t GranulesFor(uint64_t bytes) { return bytes / kGranuleBytes + (bytes % kGranuleBytes != 0 ? 1 : 0); }

std::vector<GranuleRange> GranulesOf(uint64_t image_bytes, std::span<const ByteRange> ranges) {
  std::vector<GranuleRange> all;
  for (const ByteRange& range : ranges) {
    CHECK(range.offset <= image_bytes && range.bytes <= image_bytes - range.offset)
        << "bytes " << range.offset << " + " << range.bytes << " of an allocation of " << image_bytes;
    if (range.bytes > 0) all.push_back(GranulesOf(range));
  }
  std::ranges::sort(all, {}, &GranuleRange::first);
  std::vector<GranuleRange> joined;
  // Sorted by their beginning, ranges that overlap or touch become one.
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

std::vector<ImageExtent>::const_iterator ExtentAt(const std::vector<ImageExtent>& extents, uint64_t offset) {
  // The first extent behind the offset; the one before it may reach beyond the offset.
  const auto behind = std::ranges::upper_bound(extents, offset, {}, &ImageExtent::image_offset);
  return behind != extents.begin() && ImageEnd(*std::prev(behind)) > offset ? std::prev(behind) : behind;
}

std::vector<GranuleRange> Missing(const std::vector<GranuleRange>& wanted,
                                  const std::vector<ImageExtent>& extents) {
  std::vector<GranuleRange> missing;
  for (const GranuleRange& range : wanted) {
    uint64_t next = range.first;
    const uint64_t end = range.first + range.count;
    // In each round: the hole in front of an extent, then on to the end of that extent.
    for (auto at = ExtentAt(extents, next * kGranuleBytes); next < end; ++at) {
      const uint64_t held_from = at == extents.end() ? end : std::min(end, ImageGranules(*at).first);
      if (held_from > next) missing.push_back({next, held_from - next});
      if (held_from == end) break;
      next = ImageGranules(*at).first + ImageGranules(*at).count;
    }
  }
  return missing;
}

std::vector<ImageExtent> Lay(const std::vector<GranuleRange>& places, const std::vector<GranuleRange>& pool) {
  std::vector<ImageExtent> extents;
  // Place and pool are walked side by side, as much at a time as fits both ranges.
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

// Walks the extents from the first that reaches into a range to the last. What is cut off an extent's front
// moves its place in the pool by as much.
std::vector<ImageExtent> Cut(const std::vector<ImageExtent>& extents,
                             const std::vector<GranuleRange>& wanted) {
  std::vector<ImageExtent> kept;
  for (const GranuleRange& range : wanted) {
    const uint64_t begin = range.first * kGranuleBytes;
    const uint64_t end = begin + range.count * kGranuleBytes;
    for (auto at = ExtentAt(extents, begin); at != extents.end() && at->image_offset < end; ++at) {
      const uint64_t first = std::max(begin, at->image_offset);
      kept.push_back(
          {first, {at->extent.offset + (first - at->image_offset), std::min(end, ImageEnd(*at)) - first}});
    }
  }
  return kept;
}

std::vector<ImageExtent> Joined(std::vector<ImageExtent> extents, uint64_t segment_bytes) {
  std::ranges::sort(extents, {}, &ImageExtent::image_offset);
  std::vector<ImageExtent> joined;
  for (const ImageExtent& next : extents) {
    // Not across the beginning of a segment: an extent lies in one memfd.
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

}  // namespace tensorcast
