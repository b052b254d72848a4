// Steps between values of an element (FORMAT.md). ToOrder maps the bits of an IEEE 754 float of any width
// and format to an integer that grows with the value. Adjacent representable values are one step apart. Pure
// functions on unsigned integers of the element's width.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tensorcast {

// A step byte: 0 means unchanged, kEscapedStep means that the value is in the stream of values, and any other
// byte is a zig-zag step.
inline constexpr uint8_t kEscapedStep = 255;
// In the stream of gaps this byte means that 255 elements are unchanged and the next byte continues the gap.
inline constexpr uint8_t kLongGap = 255;

template <std::unsigned_integral U>
constexpr U SignBit() {
  return static_cast<U>(U{1} << (std::numeric_limits<U>::digits - 1));
}

template <std::unsigned_integral U>
constexpr U ToOrder(U bits) {
  const U negative = static_cast<U>(U{0} - static_cast<U>(bits >> (std::numeric_limits<U>::digits - 1)));
  return static_cast<U>(bits ^ (negative | SignBit<U>()));
}

template <std::unsigned_integral U>
constexpr U FromOrder(U order) {
  const U negative = static_cast<U>(static_cast<U>(order >> (std::numeric_limits<U>::digits - 1)) - 1);
  return static_cast<U>(order ^ (negative | SignBit<U>()));
}

// Zig-zag coding: 0, -1, 1, -2, 2, ... become 0, 1, 2, 3, 4, ... Steps wrap around.
template <std::unsigned_integral U>
constexpr U ZigZag(U step) {
  const U negative = static_cast<U>(U{0} - static_cast<U>(step >> (std::numeric_limits<U>::digits - 1)));
  return static_cast<U>(static_cast<U>(step << 1) ^ negative);
}

template <std::unsigned_integral U>
constexpr U UnZigZag(U zigzag) {
  return static_cast<U>(static_cast<U>(zigzag >> 1) ^ static_cast<U>(U{0} - static_cast<U>(zigzag & 1)));
}

// The zig-zag step from one element's bits to another's.
template <std::unsigned_integral U>
constexpr U StepBetween(U base, U target) {
  return ZigZag<U>(static_cast<U>(ToOrder(target) - ToOrder(base)));
}

// The bits of the element that is `step` away from `base`. REQUIRES: step is not kEscapedStep.
template <std::unsigned_integral U>
constexpr U TakeStep(U base, uint8_t step) {
  return FromOrder<U>(static_cast<U>(ToOrder(base) + UnZigZag<U>(step)));
}

// As TakeStep, for code that decodes one element at a time. Computes in whole registers, because operations
// on parts of a register wait for each other.
template <std::unsigned_integral U>
constexpr U TakeOneStep(U base, uint8_t step) {
  using Register = std::conditional_t<(sizeof(U) < sizeof(uint32_t)), uint32_t, U>;
  constexpr int kSign = std::numeric_limits<U>::digits - 1;
  const Register bits = base;
  const Register zigzag = step;
  const Register order = (bits ^ ((Register{0} - (bits >> kSign)) | SignBit<U>())) +
                         ((zigzag >> 1) ^ (Register{0} - (zigzag & 1)));
  // The bits of `order` above the element's width are undefined; the cast drops them.
  return static_cast<U>(order ^ ((((order >> kSign) & 1) - 1) | SignBit<U>()));
}

template <std::unsigned_integral U>
U LoadElement(const void* from) {
  U bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

template <std::unsigned_integral U>
void StoreElement(void* to, U bits) {
  std::memcpy(to, &bits, sizeof(bits));
}

// Calls `work` with a zero of the unsigned integer that has `width` bytes: 1, 2, 4 or 8.
decltype(auto) WithElementType(uint32_t width, auto&& work) {
  switch (width) {
    case 1:
      return work(uint8_t{0});
    case 2:
      return work(uint16_t{0});
    case 4:
      return work(uint32_t{0});
    default:
      return work(uint64_t{0});
  }
}

}  // namespace tensorcast
