// The digest as a GPU computes it, of any bytes at any alignment: that of xxHash.
#include <xxhash.h>

#include <cstring>
#include <vector>

#include "absl/log/check.h"
#include "core/device/xxh3.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

// The first byte says how far from an aligned address the rest is put, and how often it is repeated, for
// lengths of several tiles.
void TestOneInput(std::string_view input) {
  if (input.empty()) return;
  const auto how = static_cast<uint8_t>(input.front());
  input.remove_prefix(1);
  const size_t offset = how % 64;
  const size_t times = size_t{1} << how / 64 * 3;
  std::vector<uint8_t> bytes(offset);
  for (size_t i = 0; i < times; ++i) bytes.insert(bytes.end(), input.begin(), input.end());
  const uint8_t* const data = bytes.data() + offset;
  const size_t length = bytes.size() - offset;

  static xxh3::Scratch scratch;
  uint8_t digest[xxh3::kDigestBytes];
  xxh3::DigestRange(xxh3::SequentialTeam(), data, length, scratch, digest);
  XXH128_canonical_t expected;
  XXH128_canonicalFromHash(&expected, XXH3_128bits(data, length));
  CHECK_EQ(std::memcmp(digest, expected.digest, sizeof(digest)), 0) << length << " bytes at " << offset;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const size_t bytes : {0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025, 2500}) {
    for (const char how : {'\x00', '\x01', '\x48', '\xC7'}) {
      std::string seed(1, how);
      for (size_t i = 0; i < bytes; ++i) seed.push_back(static_cast<char>(i * 131 + 7));
      seeds.push_back(std::move(seed));
    }
  }
  return seeds;
}

}  // namespace tensorcast::fuzz
