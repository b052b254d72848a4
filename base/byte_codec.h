// Writes and reads integers and strings as bytes, for the formats that FORMAT.md files describe. Integers are
// little-endian by default. Thread-compatible.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace tensorcast {

enum class ByteOrder { kLittleEndian, kBigEndian };

class ByteWriter {
 public:
  explicit ByteWriter(ByteOrder order = ByteOrder::kLittleEndian) : order_(order) {}

  template <std::unsigned_integral T>
  ByteWriter& Put(T value) {
    PutInteger(bytes_.size(), value, sizeof(T));
    return *this;
  }
  ByteWriter& Put(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  // Writes the size of `bytes` as an integer of type Length, then `bytes`. If the size does not fit Length,
  // writes nothing, and ok() is false from then on.
  template <std::unsigned_integral Length>
  ByteWriter& PutString(std::string_view bytes) {
    if (bytes.size() > std::numeric_limits<Length>::max()) {
      ok_ = false;
      return *this;
    }
    return Put(static_cast<Length>(bytes.size())).Put(bytes);
  }
  // Writes over the integer at `position`, such as a length that becomes known later. REQUIRES: its bytes
  // are already written.
  template <std::unsigned_integral T>
  void Overwrite(size_t position, T value) {
    OverwriteInteger(position, value, sizeof(T));
  }

  bool ok() const { return ok_; }
  size_t size() const { return bytes_.size(); }
  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  void PutInteger(size_t position, uint64_t value, size_t size) {
    bytes_.resize(position + size);
    OverwriteInteger(position, value, size);
  }
  void OverwriteInteger(size_t position, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; ++i) {
      const size_t significance = order_ == ByteOrder::kLittleEndian ? i : size - 1 - i;
      bytes_[position + i] = static_cast<char>(value >> (8 * significance) & 0xff);
    }
  }

  ByteOrder order_;
  bool ok_ = true;
  std::string bytes_;
};

// Reads fields from the front. Keeps its first failure: a field that reaches past the end, or a call of Fail.
// After a failure every read returns zero or an empty view, so a caller may check ok() once after several
// reads.
class ByteReader {
 public:
  // `bytes` must outlive the reader and the views that it returns.
  explicit ByteReader(std::string_view bytes, ByteOrder order = ByteOrder::kLittleEndian)
      : bytes_(bytes), order_(order) {}

  template <std::unsigned_integral T>
  T Get() {
    const std::string_view field = GetBytes(sizeof(T));
    uint64_t value = 0;
    for (size_t i = 0; i < field.size(); ++i) {
      const size_t significance = order_ == ByteOrder::kLittleEndian ? i : sizeof(T) - 1 - i;
      value |= uint64_t{static_cast<uint8_t>(field[i])} << (8 * significance);
    }
    return static_cast<T>(value);
  }
  std::string_view GetBytes(size_t count) {
    if (count > remaining()) {
      Fail("a field past the end");
      return {};
    }
    const std::string_view field = bytes_.substr(position_, count);
    position_ += count;
    return field;
  }
  // Reads a string that PutString<Length> wrote.
  template <std::unsigned_integral Length>
  std::string_view GetString() {
    return GetBytes(Get<Length>());
  }

  // Records a failure; only the first one counts. `what` is not copied: pass a literal.
  void Fail(const char* what) {
    if (failure_ == nullptr) failure_ = what;
  }

  bool ok() const { return failure_ == nullptr; }
  // The text of the failure, for a message; nullptr without a failure.
  const char* failure() const { return failure_; }
  // The number of bytes read so far, without a field that reaches past the end.
  size_t position() const { return position_; }
  size_t remaining() const { return ok() ? bytes_.size() - position_ : 0; }
  // True if all bytes were read without a failure.
  bool AtEnd() const { return ok() && position_ == bytes_.size(); }

 private:
  std::string_view bytes_;
  ByteOrder order_;
  size_t position_ = 0;
  const char* failure_ = nullptr;
};

}  // namespace tensorcast
