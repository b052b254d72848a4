// The segments of a host pool, and places in them. Value types.
#pragma once

#include <cstdint>
#include <string>

#include "base/posix/unique_fd.h"

namespace tensorcast {

// The size of a segment. A client of one replica can read the other replicas in the same segment.
inline constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;

// One of the memfds that a pool is made of. All segments but the last have the same size.
struct PoolSegment {
  uint64_t offset = 0;  // in the pool
  uint64_t bytes = 0;
  int fd = -1;  // sealed; the pool owns it and passes it to readers
};

// A segment that outlived the pool that made it. Its memory is only for reading. A segment without a
// descriptor has no memory, but takes a position in the pool.
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

// The kind of memory at a segment's position. kOwn: memory of this pool. kKept: memory of a previous pool,
// only for reading. kRoom: no memory.
enum class SegmentKind : uint8_t { kOwn, kKept, kRoom };

}  // namespace tensorcast
