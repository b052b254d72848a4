// One sealed memfd and its writable mapping: the memory of the host pool. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

// Owns the descriptor and the mapping. Movable; immutable once made, so its accessors are thread-safe.
class SharedRegion {
 public:
  // `bytes` is a positive multiple of 2 MiB. `huge_pages` are 2 MiB ones that the host has set aside; all of
  // them are reserved here, or this fails.
  static absl::StatusOr<SharedRegion> Create(uint64_t bytes, bool huge_pages);

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&& other) noexcept;
  ~SharedRegion();

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  bool huge_pages() const { return huge_pages_; }

 private:
  SharedRegion(int fd, uint64_t bytes, bool huge_pages) : fd_(fd), bytes_(bytes), huge_pages_(huge_pages) {}
  absl::Status SizeMapAndSeal();

  int fd_ = -1;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  bool huge_pages_ = false;
};

}  // namespace tensorcast
