// Little-endian fields in byte strings: how every message and descriptor of the transports is written, and a
// reader that never reads past the end. Thread-compatible.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tensorcast::transport {

class ByteWriter {
 public:
  template <std::unsigned_integral T>
  ByteWriter& Put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>((uint64_t{value} >> (8 * i)) & 0xff));
    }
    return *this;
  }
  ByteWriter& Put(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After a read past the end, ok() is false and every read gives zeros or "".
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T Get() {
    uint64_t value = 0;
    const std::string_view field = GetBytes(sizeof(T));
    for (size_t i = 0; i < field.size(); ++i) {
      value |= uint64_t{static_cast<uint8_t>(field[i])} << (8 * i);
    }
    return static_cast<T>(value);
  }
  std::string_view GetBytes(size_t count) {
    if (!ok_ || count > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view field = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return field;
  }

  bool ok() const { return ok_; }
  // True when everything was read and nothing is left.
  bool AtEnd() const { return ok_ && rest_.empty(); }
  size_t remaining() const { return rest_.size(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace tensorcast::transport
