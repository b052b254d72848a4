// Little-endian fields of the handle socket's frames. Internal to this folder; thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

void PutU32(char* at, uint32_t value);

// Appends fields. A field that does not fit is remembered and told by Finish.
class WireWriter {
 public:
  void U8(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void U16(uint16_t value) { Integer(value, 2); }
  void U32(uint32_t value) { Integer(value, 4); }
  void U64(uint64_t value) { Integer(value, 8); }
  void Bytes(std::string_view value) { bytes_.append(value); }
  void String(std::string_view value);  // a U16 length, then the bytes

  absl::StatusOr<std::string> Finish() &&;

 private:
  void Integer(uint64_t value, int size);

  std::string bytes_;
  bool overflow_ = false;
};

// Reads fields in order. After the first failure every read gives zero or nothing, and Finish tells what and
// where.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint8_t U8() { return static_cast<uint8_t>(Integer(1)); }
  uint16_t U16() { return static_cast<uint16_t>(Integer(2)); }
  uint32_t U32() { return static_cast<uint32_t>(Integer(4)); }
  uint64_t U64() { return Integer(8); }
  std::string_view Bytes(size_t size);
  std::string String() { return std::string(Bytes(U16())); }

  size_t remaining() const { return bytes_.size() - at_; }
  void SkipRest() { at_ = bytes_.size(); }
  // The first one counts. `what` must be a literal: it is kept by reference.
  void Fail(const char* what);
  // OK when nothing failed and every byte was read.
  absl::Status Finish();

 private:
  uint64_t Integer(size_t size);

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  const char* failure_ = nullptr;
  size_t failed_at_ = 0;
};

}  // namespace tensorcast
