// A range of bytes in an image, a file or a tensor. A value.
#pragma once

#include <cstdint>

namespace tensorcast {

struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};
void Fields(auto& io, ByteRange& range) { io(range.offset, range.bytes); }  // byte_fields.h

}  // namespace tensorcast
