#include "core/handles/handles.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

absl::Status BadHandles(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("read the handles of a replica: the daemon sent ", what, kOneRelease));
}

// Below this no sum of an offset and a length in an image overflows.
constexpr uint64_t kMaxImageBytes = uint64_t{1} << 62;

bool WholeGranules(uint64_t bytes) { return bytes % kGranuleBytes == 0; }

bool WholePages(uint64_t bytes) { return bytes % PageBytes() == 0; }

}  // namespace

size_t DescriptorsOf(const ReplicaHandles& handles) {
  if (const auto* host = std::get_if<HostHandles>(&handles.memory)) return host->segments.size();
  return std::holds_alternative<FileHandles>(handles.memory) ? 1 : 0;
}

// Each check makes the arithmetic of those behind it safe: the numbers come from another process, and any of
// their sums could overflow.
absl::Status CheckHostHandles(const HostHandles& host, uint64_t image_bytes) {
  for (size_t i = 1; i < host.segments.size(); ++i) {
    if (host.segments[i].number <= host.segments[i - 1].number) {
      return BadHandles("a segment of the pool twice, or segments out of order");
    }
  }
  if (image_bytes > kMaxImageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("read the handles of a replica: the daemon names an image of ", image_bytes,
                     " bytes, but an image has at most ", kMaxImageBytes, " bytes", kOneRelease));
  }
  const uint64_t image_granules = image_bytes / kGranuleBytes + (WholeGranules(image_bytes) ? 0 : 1);
  uint64_t end = 0;  // of the extent before, in the image
  for (const SegmentExtent& extent : host.extents) {
    // A small image may be one extent of whole pages, which begins the image.
    // An OR of numbers is a multiple of a power of two if each of them is.
    const bool small = image_bytes <= kMaxSmallBytes && extent.bytes < kGranuleBytes;
    if (extent.bytes == 0 || (small ? extent.image_offset != 0 || !WholePages(extent.offset | extent.bytes)
                                    : !WholeGranules(extent.image_offset | extent.offset | extent.bytes))) {
      return BadHandles(
          "an extent that is neither whole granules nor, for a small image, whole pages from the start of "
          "the image");
    }
    if (extent.segment >= host.segments.size()) {
      return BadHandles("an extent in a segment that the daemon did not name");
    }
    const uint64_t segment_bytes = host.segments[extent.segment].bytes;
    if (extent.offset > segment_bytes || extent.bytes > segment_bytes - extent.offset) {
      return BadHandles("an extent that reaches past its segment of the pool");
    }
    if (extent.image_offset < end) {
      return BadHandles("extents that overlap, or that are not in the order of the image");
    }
    // In granules, of which no sum overflows.
    if (extent.image_offset / kGranuleBytes + extent.bytes / kGranuleBytes > image_granules) {
      return BadHandles("an extent that reaches past the image");
    }
    end = extent.image_offset + extent.bytes;
  }
  return absl::OkStatus();
}

bool HostHandles::Covers(uint64_t offset, uint64_t bytes) const {
  const uint64_t end = offset + bytes;
  // The last extent that begins at or before the offset.
  auto at = std::ranges::upper_bound(extents, offset, {}, &SegmentExtent::image_offset);
  if (at != extents.begin()) --at;
  // Goes from extent to extent, as long as each begins where the previous one ends.
  for (; offset < end; ++at) {
    if (at == extents.end() || at->image_offset > offset) return false;
    if (at->image_offset + at->bytes <= offset) return false;
    offset = at->image_offset + at->bytes;
  }
  return true;
}

std::vector<uint64_t> ReadableChunks(const ReplicaHandles& handles, uint64_t image_bytes,
                                     uint64_t chunk_bytes) {
  const auto* host = std::get_if<HostHandles>(&handles.memory);
  if (host == nullptr || host->Covers(0, image_bytes)) return {};
  const uint64_t chunks = (image_bytes - 1) / chunk_bytes + 1;
  std::vector<uint64_t> readable((chunks + 63) / 64);
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    const uint64_t offset = chunk * chunk_bytes;
    if (host->Covers(offset, std::min(chunk_bytes, image_bytes - offset))) {
      readable[chunk / 64] |= uint64_t{1} << (chunk % 64);
    }
  }
  return readable;
}

void SetHostMemory(Claim& claim, const HostPool& pool, std::string pool_id, const HostAllocation& memory) {
  const std::vector<PoolSegment>& segments = pool.segments();
  // All segments but the last have this size, and extents do not cross them: a division finds the segment.
  const uint64_t segment_bytes = segments.front().bytes;
  HostHandles host{.pool_id = std::move(pool_id), .segments = {}, .extents = {}};
  claim.fds.clear();
  // Only the segments that the replica lies in are passed: each is a descriptor in the client.
  std::map<uint64_t, uint32_t> used;  // number in the pool -> place among the used ones
  for (const ImageExtent& part : memory.extents()) used.emplace(part.extent.offset / segment_bytes, 0);
  for (auto& [number, place] : used) {
    place = static_cast<uint32_t>(host.segments.size());
    host.segments.push_back({static_cast<uint32_t>(number), segments[number].bytes});
    claim.fds.push_back(segments[number].fd);
  }
  host.extents.reserve(memory.extents().size());
  for (const ImageExtent& part : memory.extents()) {
    host.extents.push_back({.image_offset = part.image_offset,
                            .segment = used[part.extent.offset / segment_bytes],
                            .offset = part.extent.offset % segment_bytes,
                            .bytes = part.extent.bytes});
  }
  claim.handles.memory = std::move(host);
}

}  // namespace tensorcast
