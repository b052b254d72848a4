// The segments of a host pool, and places in them. Values.
#pragma once

#include <cstdint>
#include <string>

#include "base/posix/unique_fd.h"

namespace tensorcast {

// The size of a segment. A client of one replica can read the other replicas in the same segment, so segments
// should be small; but a pool of many segments needs many descriptors.
inline constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;

// One of the memfds that a pool is made of. All but the last are equally large.
struct PoolSegment {
  uint64_t offset = 0;  // in the pool
  uint64_t bytes = 0;
  int fd = -1;  // sealed, the pool's; to be passed to readers
};

// A segment that outlived the pool that made it. Its memory can be read, but never written again. A segment
// without a descriptor has no memory, but keeps its place in the pool.
struct KeptSegment {
  std::string name;
  UniqueFd fd;
};

// A piece of an allocation, by the name of its segment, so that another process can find the piece again.
struct NamedExtent {
  uint64_t image_offset = 0;
  std::string segment;
  uint64_t offset = 0;  // in the segment
  uint64_t bytes = 0;
  friend bool operator==(const NamedExtent&, const NamedExtent&) = default;
};
void Fields(auto& io, NamedExtent& extent) {  // base/byte_fields.h
  io(extent.image_offset, extent.segment, extent.offset, extent.bytes);
}

// The memory in the place of a segment: kOwn, this pool's; kKept, a previous pool's, only for reading; kRoom,
// none.
enum class SegmentKind : uint8_t { kOwn, kKept, kRoom };

}  // namespace tensorcast
