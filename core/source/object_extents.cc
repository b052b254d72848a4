#include "core/source/object_extents.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

bool Inside(uint64_t offset, uint64_t bytes, uint64_t whole) {
  return offset <= whole && bytes <= whole - offset;
}

template <typename... Why>
absl::Status Refuse(const ObjectExtent& extent, const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("map ", extent.bytes, " bytes at offset ",
                                                 extent.image_offset, " of the image: ", why...));
}

absl::Status Check(const ObjectExtent& extent, uint64_t image_bytes,
                   const std::vector<uint64_t>& object_bytes) {
  if (extent.object >= object_bytes.size()) {
    return Refuse(extent, "the extent names object ", extent.object, ", and there are ", object_bytes.size(),
                  " objects, numbered from 0; name one of those objects");
  }
  if (!Inside(extent.image_offset, extent.bytes, image_bytes)) {
    return Refuse(extent, "the extent reaches past the image of ", image_bytes, " bytes; shorten the extent");
  }
  if (!Inside(extent.object_offset, extent.bytes, object_bytes[extent.object])) {
    return Refuse(extent, "the extent starts at offset ", extent.object_offset, " of object ", extent.object,
                  " and ends after that object's ", object_bytes[extent.object],
                  " bytes; place the extent inside the object");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ObjectExtents> ObjectExtents::Create(std::vector<ObjectExtent> extents, uint64_t image_bytes,
                                                    const std::vector<uint64_t>& object_bytes) {
  std::erase_if(extents, [](const ObjectExtent& extent) { return extent.bytes == 0; });
  // In this order one pass finds overlaps, and Cut can search.
  std::ranges::sort(extents, {}, &ObjectExtent::image_offset);
  uint64_t end = 0;
  for (const ObjectExtent& extent : extents) {
    if (absl::Status status = Check(extent, image_bytes, object_bytes); !status.ok()) return status;
    if (extent.image_offset < end) {
      return Refuse(extent, "the extent overlaps the previous extent; describe each byte once");
    }
    end = extent.image_offset + extent.bytes;
  }
  return ObjectExtents(std::move(extents), image_bytes);
}

std::vector<ObjectPiece> ObjectExtents::Cut(const ByteRange& range,
                                            std::span<const HostSpan> destination) const {
  std::vector<ObjectPiece> pieces;
  uint64_t at = range.offset;
  // The first extent that ends behind `at`.
  auto extent = std::ranges::upper_bound(extents_, at, {}, &ObjectExtent::image_offset);
  if (extent != extents_.begin() && std::prev(extent)->image_offset + std::prev(extent)->bytes > at) --extent;
  for (HostSpan span : destination) {
    while (!span.empty()) {
      ObjectPiece piece;
      uint64_t bytes = span.size();
      // Within an extent the bytes are its object's. Before it, and behind the last, they are zeros.
      if (extent != extents_.end() && extent->image_offset <= at) {
        const uint64_t skip = at - extent->image_offset;
        bytes = std::min(bytes, extent->bytes - skip);
        piece.object = extent->object;
        piece.object_offset = extent->object_offset + skip;
        // The gap before the next extent: `piece.object` stays kZeros.
      } else if (extent != extents_.end()) {
        bytes = std::min(bytes, extent->image_offset - at);
      }
      piece.destination = span.first(bytes);
      pieces.push_back(piece);
      span = span.subspan(bytes);
      at += bytes;
      if (extent != extents_.end() && extent->image_offset + extent->bytes <= at) ++extent;
    }
  }
  return pieces;
}

}  // namespace tensorcast
