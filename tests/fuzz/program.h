// An input that is a program: each step takes the bytes that it needs off the front, and gets zeros once none
// are left. Any bytes are thus a program, and a small change of the bytes is a small change of the program.
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

class Program {
 public:
  explicit Program(std::string_view bytes) : bytes_(bytes) {}

  bool AtEnd() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  // A number below `end`. REQUIRES: end > 0.
  uint32_t Below(uint32_t end) { return (Byte() | uint32_t{Byte()} << 8) % end; }
  // A number where errors are likely: near zero, near `near` on both sides, near the end of the type, or
  // anywhere.
  uint64_t Number(uint64_t near) {
    switch (Byte() % 6) {
      case 0:
        return Byte();
      case 1:
        return near - Byte();
      case 2:
        return near + Byte();
      case 3:
        return ~uint64_t{Byte()};
      case 4:
        return TakeU64(bytes_);
      default:
        return Below(uint32_t{1} << 16);
    }
  }
  // Takes at most `max` bytes.
  std::string Bytes(size_t max) {
    std::string taken(bytes_.substr(0, max));
    bytes_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view bytes_;
};

}  // namespace tensorcast::fuzz
