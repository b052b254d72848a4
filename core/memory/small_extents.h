// Allocates pieces of granules for images that are much smaller than a granule. A piece consists of memory
// pages, the smallest unit that a client can map. Does not touch the memory itself. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/memory/extent.h"

namespace tensorcast {

class SmallExtents {
 public:
  // REQUIRES: page_bytes divides kGranuleBytes.
  explicit SmallExtents(uint64_t page_bytes) : page_bytes_(page_bytes) {}

  // Allocates whole pages of one granule, with one reference; nullopt if no granule has room for them.
  // REQUIRES: 0 < bytes <= kGranuleBytes.
  std::optional<Extent> Allocate(uint64_t bytes);
  // Adds a granule of the pool, by its number, for further pieces.
  void AddGranule(uint64_t granule);

  // REQUIRES: the piece was allocated here and still has a reference.
  void AddReference(Extent piece);
  // Drops a reference; without references the piece is free. If its granule then has no piece, returns the
  // granule's number, and the granule belongs to the caller again; else returns nullopt.
  std::optional<uint64_t> DropReference(Extent piece);

  uint64_t free_bytes() const { return free_bytes_; }

 private:
  struct Granule {
    std::vector<bool> taken;  // one for each page
    uint64_t free_pages = 0;
  };

  const uint64_t page_bytes_;
  std::map<uint64_t, Granule> granules_;             // pieces are cut from the lowest granule with room
  absl::flat_hash_map<uint64_t, uint32_t> further_;  // references beyond the first, by the piece's offset
  uint64_t free_bytes_ = 0;
};

}  // namespace tensorcast
