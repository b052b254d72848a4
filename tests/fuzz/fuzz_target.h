// What every fuzz target is: one function that takes any bytes, and a few valid inputs to begin with. A
// source of this folder defines both for one decoder; it is linked with libfuzzer_main.cc (clang, make fuzz)
// or with replay_test.cc (every build, the test suite).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcast::fuzz {

// Feeds `input` to the decoder and checks with CHECK what must hold of the outcome, whatever the input.
void TestOneInput(std::string_view input);

// Inputs that the decoder accepts, and near misses. Deterministic.
std::vector<std::string> Seeds();

// The first 8 bytes of `input`, little-endian, taken off its front; zeros where it is shorter. For targets
// that need a number beside their bytes.
inline uint64_t TakeU64(std::string_view& input) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8 && !input.empty(); ++i) {
    value |= uint64_t{static_cast<uint8_t>(input.front())} << (8 * i);
    input.remove_prefix(1);
  }
  return value;
}

// What TakeU64 reads.
inline std::string U64Bytes(uint64_t value) {
  std::string bytes(8, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return bytes;
}

}  // namespace tensorcast::fuzz
