#include "core/handles/wire.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast {

void PutU32(char* at, uint32_t value) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<char>(value >> (8 * i));
}

void WireWriter::Integer(uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
}

void WireWriter::String(std::string_view value) {
  if (value.size() > std::numeric_limits<uint16_t>::max()) {
    overflow_ = true;
    return;
  }
  U16(static_cast<uint16_t>(value.size()));
  Bytes(value);
}

absl::StatusOr<std::string> WireWriter::Finish() && {
  if (overflow_)
    return absl::InvalidArgumentError("a field is longer than the 65535 bytes that fit its length");
  return std::move(bytes_);
}

void WireReader::Fail(const char* what) {
  if (failure_ != nullptr) return;
  failure_ = what;
  failed_at_ = at_;
  at_ = bytes_.size();
}

std::string_view WireReader::Bytes(size_t size) {
  if (size > remaining()) {
    Fail("a field past the end of the frame");
    return {};
  }
  const char* begin = reinterpret_cast<const char*>(bytes_.data()) + at_;
  at_ += size;
  return {begin, size};
}

uint64_t WireReader::Integer(size_t size) {
  const std::string_view field = Bytes(size);
  uint64_t value = 0;
  for (size_t i = 0; i < field.size(); ++i) value |= uint64_t{static_cast<uint8_t>(field[i])} << (8 * i);
  return value;
}

absl::Status WireReader::Finish() {
  if (remaining() > 0) Fail("bytes behind the last field");
  if (failure_ == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("handle socket: ", failure_, " at byte ", failed_at_, " of ", bytes_.size()));
}

}  // namespace tensorcast
