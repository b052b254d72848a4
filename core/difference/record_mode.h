// The modes of a record (FORMAT.md): how a chunk of the target is made from the same chunk of the base.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tensorcast {

// The numbers are part of the format.
enum class RecordMode : uint8_t {
  kSame = 0,    // the chunk is the base's chunk
  kSparse = 1,  // gaps between changed elements, and the steps of the changed elements
  kBitmap = 2,  // a bit for each element, and the steps of the changed elements
  kDense = 3,   // a step for each element
  kWhole = 4,   // nothing is recorded: the receiver fetches the whole chunk
};

// "same", "sparse", "bitmap", "dense", "whole"; "" for another number.
constexpr std::string_view RecordModeName(RecordMode mode) {
  constexpr std::array<std::string_view, 5> kNames = {"same", "sparse", "bitmap", "dense", "whole"};
  const auto number = static_cast<size_t>(mode);
  return number < kNames.size() ? kNames[number] : std::string_view();
}

}  // namespace tensorcast
