// Names of enumerations that count from 0. A pure function.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace tensorcast {

// The name of `value`; "unknown" for a value without a name, which a peer or a cast may produce.
template <typename Enum, size_t N>
constexpr std::string_view NameIn(const std::array<std::string_view, N>& names, Enum value) {
  const auto number = static_cast<size_t>(value);
  return number < N ? names[number] : "unknown";
}

}  // namespace tensorcast
