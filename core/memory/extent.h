// The unit in which the host pool hands out memory, and a piece of the pool.
#pragma once

#include <cstdint>

namespace tensorcast {

inline constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;

// A piece of the pool: bytes from the pool's start.
struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

}  // namespace tensorcast
