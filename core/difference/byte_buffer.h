// A growing buffer of bytes. New bytes are not set to zero. Clear keeps the memory for the next use.
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace tensorcast {

class ByteBuffer {
 public:
  void Clear() { size_ = 0; }
  // Makes room for `bytes` more bytes behind size(), and returns the address of this room. The caller writes
  // there and then calls Commit with the number of bytes written.
  uint8_t* Room(size_t bytes) {
    if (bytes > capacity_ - size_) Grow(size_ + bytes);
    return bytes_.get() + size_;
  }
  void Commit(size_t bytes) { size_ += bytes; }

  size_t size() const { return size_; }
  std::span<const uint8_t> bytes() const { return {bytes_.get(), size_}; }
  std::span<uint8_t> mutable_bytes() { return {bytes_.get(), size_}; }

 private:
  void Grow(size_t min_capacity) {
    const size_t capacity = std::max(min_capacity, capacity_ * 2);
    auto grown = std::make_unique_for_overwrite<uint8_t[]>(capacity);
    if (size_ > 0) std::memcpy(grown.get(), bytes_.get(), size_);
    bytes_ = std::move(grown);
    capacity_ = capacity;
  }

  std::unique_ptr<uint8_t[]> bytes_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace tensorcast
