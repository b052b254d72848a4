#include "core/device/xxh3.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace tensorcast::xxh3::xxh3_test {
namespace {

using DigestBytes = std::array<uint8_t, kDigestBytes>;

// A million were tried when this was written; they take 5 s, and much longer under the sanitizers.
constexpr int kRandomCases = 200'000;

constexpr uint64_t kMaxBytes = 3 * kTileBlocks * kBlockBytes;

DigestBytes Ours(const uint8_t* data, uint64_t bytes) {
  static Scratch scratch;  // as it was left by another input
  DigestBytes digest{};
  DigestRange(SequentialTeam(), data, bytes, scratch, digest.data());
  return digest;
}

DigestBytes Theirs(const uint8_t* data, uint64_t bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
  DigestBytes digest;
  std::copy_n(canonical.digest, kDigestBytes, digest.begin());
  return digest;
}

class Xxh3 : public ::testing::Test {
 protected:
  Xxh3() {
    for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random_());
  }

  void ExpectSame(uint64_t offset, uint64_t bytes) {
    ASSERT_EQ(Ours(bytes_.data() + offset, bytes), Theirs(bytes_.data() + offset, bytes))
        << bytes << " bytes at " << offset;
  }

  std::mt19937_64 random_{1};
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kMaxBytes + 64);
};

TEST_F(Xxh3, DeviceXxh3_MatchesXxHashAtEveryLengthAndAlignment) {
  for (uint64_t bytes = 0; bytes <= 2200; ++bytes) {
    for (uint64_t offset = 0; offset < 64; ++offset) ASSERT_NO_FATAL_FAILURE(ExpectSame(offset, bytes));
  }
}

TEST_F(Xxh3, DeviceXxh3_MatchesXxHashAroundBlockBorders) {
  constexpr uint64_t kTileBytes = kTileBlocks * kBlockBytes;
  for (const uint64_t unit : {kStripeBytes, kBlockBytes, kTileBytes}) {
    for (const uint64_t count : {1, 2, 3, 15, 16, 17, 63, 64, 65}) {
      for (int beside = -65; beside <= 65; ++beside) {
        const uint64_t bytes = unit * count + beside;
        if (bytes > kMaxBytes) continue;
        ASSERT_NO_FATAL_FAILURE(ExpectSame(beside & 63, bytes));
      }
    }
  }
}

// Lengths of all magnitudes are equally likely.
TEST_F(Xxh3, DeviceXxh3_MatchesXxHashForRandomInputs) {
  for (int i = 0; i < kRandomCases; ++i) {
    const uint64_t max = std::min(kMaxBytes, uint64_t{1} << random_() % 19);
    const uint64_t bytes = random_() % (max + 1);
    const uint64_t offset = random_() % (bytes_.size() - bytes);
    bytes_[offset] = static_cast<uint8_t>(random_());
    ASSERT_NO_FATAL_FAILURE(ExpectSame(offset, bytes));
  }
}

// Bits that only carry between words, where random bytes seldom do.
TEST_F(Xxh3, DeviceXxh3_MatchesXxHashForRepeatedByte) {
  for (const uint8_t value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
    std::ranges::fill(bytes_, value);
    for (const uint64_t bytes : {1, 3, 8, 16, 128, 240, 241, 1024, 1025, 5000, 70'000, 196'608}) {
      ASSERT_NO_FATAL_FAILURE(ExpectSame(0, bytes));
    }
  }
}

}  // namespace
}  // namespace tensorcast::xxh3::xxh3_test
