// A reserved range of address space, into which files are mapped piece by piece. An access to an address
// without a mapping is a fault (SIGSEGV).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

// Owns the range; the destructor unmaps it. Movable; thread-compatible.
class ReservedRange {
 public:
  ReservedRange() = default;
  // `bytes` is rounded up to whole pages. The range begins at a multiple of 2 MiB. `what` names the range's
  // purpose in messages. RESOURCE_EXHAUSTED if this process cannot reserve more address space.
  static absl::StatusOr<ReservedRange> Reserve(uint64_t bytes, std::string_view what);
  ReservedRange(ReservedRange&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ReservedRange& operator=(ReservedRange&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ReservedRange();

  // kCopyOnWrite: this process may read and write, and other processes do not see the writes.
  enum class Access : uint8_t { kRead, kWrite, kCopyOnWrite };
  // The bytes that a mapping of the file's first `bytes` bytes takes: `bytes`, rounded up to whole huge pages
  // if the file consists of reserved huge pages.
  static uint64_t MappedBytes(int fd, uint64_t bytes);
  // Maps bytes [offset, offset + bytes) of the file at offset `at` of the range. REQUIRES: the bytes fit in
  // the range. INVALID_ARGUMENT if the huge pages that hold these bytes do not fit in the range.
  // kCopyOnWrite of reserved huge pages reserves the same number of huge pages again. RESOURCE_EXHAUSTED if
  // too few huge pages are free.
  absl::Status Map(uint64_t at, int fd, uint64_t offset, uint64_t bytes, Access access);

  std::byte* base() const { return base_; }  // nullptr for an empty range
  uint64_t bytes() const { return bytes_; }

 private:
  ReservedRange(std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace tensorcast
