// Little-endian fields in a run of bytes, for this folder's codec: a writer that appends, and a reader that
// never looks past the end and says at which byte its input is wrong. Thread-compatible.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {

// Appends little-endian fields.
class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void Integer(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_ += static_cast<char>(value >> (8 * i) & 0xFF);
    }
  }
  void Raw(std::string_view bytes) { bytes_ += bytes; }
  void String(std::string_view text) {
    Integer(static_cast<uint32_t>(text.size()));
    Raw(text);
  }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Takes fields off the front. Never reads past the end.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  absl::Status Error(uint64_t position, std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("not a manifest: at byte ", position, ": ", what));
  }

  absl::StatusOr<std::string_view> Raw(uint64_t bytes, std::string_view what) {
    if (bytes > left()) {
      return Error(position_, absl::StrCat(what, " needs ", bytes, " bytes, but ", left(), " are left"));
    }
    const std::string_view taken = bytes_.substr(position_, bytes);
    position_ += bytes;
    return taken;
  }

  template <std::unsigned_integral T>
  absl::Status Integer(T& value, std::string_view what) {
    TC_ASSIGN_OR_RETURN(const std::string_view raw, Raw(sizeof(T), what));
    T result = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      result |= static_cast<T>(static_cast<T>(static_cast<uint8_t>(raw[i])) << (8 * i));
    }
    value = result;
    return absl::OkStatus();
  }

  // A number of things that take at least `min_bytes` each.
  absl::Status Count(uint32_t& count, uint64_t min_bytes, std::string_view what) {
    const uint64_t at = position_;
    TC_RETURN_IF_ERROR(Integer(count, what));
    if (count > left() / min_bytes) {
      return Error(
          at, absl::StrCat(what, " of ", count, " does not fit in the ", left(), " bytes that are left"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string_view> String(std::string_view what) {
    uint32_t bytes = 0;
    TC_RETURN_IF_ERROR(Integer(bytes, what));
    return Raw(bytes, what);
  }

 private:
  std::string_view bytes_;
  uint64_t position_ = 0;
};

}  // namespace tensorcast
