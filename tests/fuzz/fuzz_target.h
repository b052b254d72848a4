// The interface of a fuzz target: one function that takes any bytes, and a few valid inputs to begin with.
// Each source of this folder defines both for one decoder; it is linked with libfuzzer_main.cc (clang, make
// fuzz) or with replay_test.cc (every build, the test suite).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_codec.h"

namespace tensorcast::fuzz {

// Feeds `input` to the decoder and checks with CHECK what must hold of the result for any input.
void TestOneInput(std::string_view input);

// Inputs that the decoder accepts, and inputs that it just refuses. Deterministic.
std::vector<std::string> Seeds();

// Removes the first 8 bytes of `input` and returns them as a little-endian number; missing bytes are zero.
// For targets that need a number besides their bytes.
inline uint64_t TakeU64(std::string_view& input) {
  std::string bytes(input.substr(0, sizeof(uint64_t)));
  input.remove_prefix(bytes.size());
  bytes.resize(sizeof(uint64_t));
  return ByteReader(bytes).Get<uint64_t>();
}

// Writes what TakeU64 reads.
inline std::string U64Bytes(uint64_t value) { return ByteWriter().Put(value).Take(); }

}  // namespace tensorcast::fuzz
