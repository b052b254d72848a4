#include "core/difference/record_mode.h"

#include <array>
#include <cstddef>

namespace tensorcast {

std::string_view RecordModeName(RecordMode mode) {
  static constexpr std::array<std::string_view, 5> kNames = {"same", "sparse", "bitmap", "dense", "whole"};
  const auto number = static_cast<size_t>(mode);
  return number < kNames.size() ? kNames[number] : "";
}

}  // namespace tensorcast
