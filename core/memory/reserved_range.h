// Address space that memory is mapped into piece by piece. What nothing was mapped into cannot be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

// Owns the range, and unmaps what was mapped into it when it goes. Movable; thread-compatible.
class ReservedRange {
 public:
  ReservedRange() = default;
  // `bytes` is rounded up to whole pages. The range begins at a huge page's boundary. `what` it is
  // for, in messages. RESOURCE_EXHAUSTED when this process may have no more.
  static absl::StatusOr<ReservedRange> Reserve(uint64_t bytes, std::string_view what);
  ReservedRange(ReservedRange&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ReservedRange& operator=(ReservedRange&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ReservedRange();

  // What this process may do with what is mapped. Copy on write: read and write, where a page that is written
  // to becomes this process's own, and no other process sees it.
  enum class Access : uint8_t { kRead, kWrite, kCopyOnWrite };
  // Maps bytes [offset, offset + bytes) of the file at `at`. REQUIRES: they fit in the range.
  // Copy on write of huge pages that were set aside: as many more are reserved for the mapping, since a write
  // that finds none free is a SIGBUS. RESOURCE_EXHAUSTED where there are not as many.
  absl::Status Map(uint64_t at, int fd, uint64_t offset, uint64_t bytes, Access access);

  std::byte* base() const { return base_; }  // nullptr when it is empty
  uint64_t bytes() const { return bytes_; }

 private:
  ReservedRange(std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace tensorcast
