#include "core/artifact/test_util.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/log/check.h"

#define XXH_INLINE_ALL  // with the secret that is otherwise private
#include <xxhash.h>

namespace tensorcast::testing {

std::vector<ChunkDigests> DigestsOf(const ImageLayout& layout, std::span<const std::byte> image) {
  std::vector<ChunkDigests> digests;
  for (uint32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    const ByteRange range = layout.chunk(chunk);
    const std::span<const std::byte> bytes = image.subspan(range.offset, range.bytes);
    digests.push_back({.xxh3 = ComputeDigest(bytes), .blake3 = ComputeBlake3(bytes)});
  }
  return digests;
}

// XXH3 takes its input in blocks of sixteen stripes of eight words. Within a block, word i of stripe n, with
// `secret` word n + i, goes into two of eight sums modulo 2^64 and nowhere else:
//   sum[i ^ 1] += word
//   sum[i] += low half of (word ^ secret) * high half of (word ^ secret)
// So words may change as long as the sum of the words and the sum of the products of one i stay. Here it is
// i = 0: stripe 0 has the chosen bytes, stripes 1 to 3 the products that are then needed, and 4 and 5, with
// products of 0, the rest of the words' sum.
void ForgeKeepingXxh3(std::span<std::byte> bytes) {
  constexpr size_t kStripeBytes = 64;
  constexpr size_t kStripes = 6;
  constexpr uint64_t kLow = 0xFFFFFFFF;
  CHECK_GE(bytes.size(), 17 * kStripeBytes) << "the last stripe is another sum";
  std::array<uint64_t, kStripes> words, secrets;
  uint64_t sum = 0, products = 0;
  const auto product = [&](size_t n) {
    const uint64_t keyed = words[n] ^ secrets[n];
    return (keyed & kLow) * (keyed >> 32);
  };
  for (size_t n = 0; n < kStripes; ++n) {
    std::memcpy(&words[n], &bytes[n * kStripeBytes], sizeof(words[n]));
    std::memcpy(&secrets[n], XXH3_kSecret + n * sizeof(uint64_t), sizeof(secrets[n]));
    sum += words[n];
    products += product(n);
  }
  words[0] = ~words[0];
  products -= product(0);
  // products = 1 * ones + 2^31 * (first + second), each of the three below 2^32.
  const uint64_t halves = std::min(products >> 31, (uint64_t{1} << 33) - 2);
  const uint64_t ones = products - (halves << 31);
  const uint64_t first = std::min(halves, kLow);
  const uint64_t second = halves - first;
  words[1] = secrets[1] ^ (ones << 32 | 1);
  words[2] = secrets[2] ^ (first << 32 | uint64_t{1} << 31);
  words[3] = secrets[3] ^ (second << 32 | uint64_t{1} << 31);
  const uint64_t rest = sum - words[0] - words[1] - words[2] - words[3];
  words[4] = (secrets[4] & ~kLow) | ((rest - secrets[5]) & kLow);
  words[5] = rest - words[4];
  for (size_t n = 0; n < kStripes; ++n) std::memcpy(&bytes[n * kStripeBytes], &words[n], sizeof(words[n]));
}

std::vector<ChunkDigests> NoDigests(const ImageLayout& layout) {
  return std::vector<ChunkDigests>(layout.chunk_count(), {.xxh3 = {}, .blake3 = Blake3Digest()});
}

}  // namespace tensorcast::testing
