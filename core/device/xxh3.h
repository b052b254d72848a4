// XXH3-128 with seed 0 and the default secret. nvcc compiles this text for the digest kernel. A host compiler
// compiles the same text for the fake device, the stand-in for the CUDA runtime and the tests. Written from
// the algorithm's specification (doc/xxhash_spec.md of https://github.com/Cyan4973/xxHash).
//
// A long input consists of blocks of 1 KiB. A block adds a sum over its stripes to each of the eight
// accumulators. The sums of one block do not depend on other blocks. Only the scrambling between two blocks
// is sequential. So a team of lanes processes a tile of 64 blocks at a time:
// - Most lanes compute the sums of one tile. Four lanes share a block, and each of them reads two words of
//   every stripe, so that neighbouring lanes read neighbouring bytes.
// - Eight other lanes, one for each accumulator, scramble the accumulators with the sums of the previous
//   tile.
//
// Threading: each input has its own team and Scratch. No errors: all inputs have a digest. Private to this
// folder and to the test doubles of the hardware.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/device/host_device.h"

#if defined(__CUDACC__)
#define TENSORCAST_NOINLINE __noinline__
#else
#define TENSORCAST_NOINLINE
#endif

namespace tensorcast::xxh3 {

inline constexpr int kDigestBytes = 16;

inline constexpr uint64_t kStripeBytes = 64;
inline constexpr int kStripeWords = 8;
// The secret has 192 bytes. Stripe i of a block uses the 64 bytes of the secret from byte 8 * i on.
inline constexpr int kSecretWords = 24;
inline constexpr int kBlockStripes = kSecretWords - kStripeWords;
inline constexpr uint64_t kBlockBytes = kBlockStripes * kStripeBytes;
// One lane digests an input of at most this many bytes.
inline constexpr uint64_t kMaxShortBytes = 240;

inline constexpr int kTileBlocks = 64;
inline constexpr int kLanesOfBlock = kStripeWords / 2;
inline constexpr int kSumLanes = kTileBlocks * kLanesOfBlock;
// The sum lanes, and a warp for scrambling, in which only kStripeWords lanes have work.
inline constexpr int kLanes = kSumLanes + 32;

// State that the lanes of a team share. On a GPU it is in the shared memory of a thread block.
struct Scratch {
  uint64_t secret[kSecretWords];
  uint64_t accumulators[kStripeWords];
  uint64_t sums[2][kTileBlocks][kStripeWords];  // of a tile and of the previous tile
};

// Runs the lanes of a team on the host, one after another.
struct SequentialTeam {
  template <typename Work>
  void Each(const Work& work) const {
    for (int lane = 0; lane < kLanes; ++lane) work(lane);
  }
};

namespace internal {

__extension__ typedef unsigned __int128 Uint128;

inline constexpr uint64_t kPrime32A = 0x9E3779B1U;
inline constexpr uint64_t kPrime32B = 0x85EBCA77U;
inline constexpr uint64_t kPrime32C = 0xC2B2AE3DU;
inline constexpr uint64_t kPrime64A = 0x9E3779B185EBCA87ULL;
inline constexpr uint64_t kPrime64B = 0xC2B2AE3D27D4EB4FULL;
inline constexpr uint64_t kPrime64C = 0x165667B19E3779F9ULL;
inline constexpr uint64_t kPrime64D = 0x85EBCA77C2B2AE63ULL;
inline constexpr uint64_t kPrime64E = 0x27D4EB2F165667C5ULL;
inline constexpr uint64_t kPrimeMixA = 0x165667919E3779F9ULL;
inline constexpr uint64_t kPrimeMixB = 0x9FB21C651E98DF25ULL;

// Offsets in the secret, in bytes, of the parts that do not begin at offset 0.
inline constexpr int kScrambleSecret = 128;
inline constexpr int kLastStripeSecret = 121;
inline constexpr int kLowMergeSecret = 11;
inline constexpr int kHighMergeSecret = 117;
inline constexpr int kLaterPairsSecret = 3;
inline constexpr int kLastPairSecret = 103;

struct Hash {
  uint64_t low = 0;
  uint64_t high = 0;
};

struct Words {
  uint64_t first = 0;
  uint64_t second = 0;
};

TENSORCAST_HOST_DEVICE inline uint64_t SecretWord(int index) {
  constexpr uint64_t kSecret[kSecretWords] = {
      0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
      0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
      0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
      0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
      0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};
  return kSecret[index];
}

// The eight bytes of the secret that begin at `byte`.
TENSORCAST_HOST_DEVICE inline uint64_t Secret(int byte) {
  const int shift = byte % 8 * 8;
  const uint64_t low = SecretWord(byte / 8) >> shift;
  return shift == 0 ? low : low | SecretWord(byte / 8 + 1) << (64 - shift);
}

// Hosts and GPUs are little-endian, as the algorithm is.
TENSORCAST_HOST_DEVICE inline uint64_t Load64(const uint8_t* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

TENSORCAST_HOST_DEVICE inline uint32_t Load32(const uint8_t* at) {
  uint32_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

TENSORCAST_HOST_DEVICE inline Words LoadWords(const uint8_t* at) { return {Load64(at), Load64(at + 8)}; }

// Loads from an address that is a multiple of 16, with one instruction on a GPU. It uses a vector type
// instead of __builtin_assume_aligned, because nvcc 13.0 applies that assumption also to the branch for
// unaligned addresses.
TENSORCAST_HOST_DEVICE inline Words LoadAlignedWords(const uint8_t* at) {
#if defined(__CUDA_ARCH__)
  const ulonglong2 words = *reinterpret_cast<const ulonglong2*>(at);
  return {words.x, words.y};
#else
  return LoadWords(at);
#endif
}

TENSORCAST_HOST_DEVICE inline uint32_t Reversed(uint32_t word) {
  word = (word & 0x00FF00FFU) << 8 | (word >> 8 & 0x00FF00FFU);
  return word << 16 | word >> 16;
}

TENSORCAST_HOST_DEVICE inline uint64_t Reversed(uint64_t word) {
  return static_cast<uint64_t>(Reversed(static_cast<uint32_t>(word))) << 32 |
         Reversed(static_cast<uint32_t>(word >> 32));
}

TENSORCAST_HOST_DEVICE inline Hash Product(uint64_t a, uint64_t b) {
  const Uint128 product = static_cast<Uint128>(a) * b;
  return {static_cast<uint64_t>(product), static_cast<uint64_t>(product >> 64)};
}

TENSORCAST_HOST_DEVICE inline uint64_t FoldedProduct(uint64_t a, uint64_t b) {
  const Hash product = Product(a, b);
  return product.low ^ product.high;
}

TENSORCAST_HOST_DEVICE inline uint64_t Avalanche(uint64_t word) {
  word ^= word >> 37;
  word *= kPrimeMixA;
  return word ^ word >> 32;
}

TENSORCAST_HOST_DEVICE inline uint64_t AvalancheOfXxh64(uint64_t word) {
  word ^= word >> 33;
  word *= kPrime64B;
  word ^= word >> 29;
  word *= kPrime64C;
  return word ^ word >> 32;
}

// --- inputs of up to 240 bytes

TENSORCAST_HOST_DEVICE inline Hash HashOfNothing() {
  return {AvalancheOfXxh64(Secret(64) ^ Secret(72)), AvalancheOfXxh64(Secret(80) ^ Secret(88))};
}

TENSORCAST_HOST_DEVICE inline Hash HashUpTo3(const uint8_t* data, uint32_t bytes) {
  const uint32_t all = data[bytes - 1] | bytes << 8 | static_cast<uint32_t>(data[0]) << 16 |
                       static_cast<uint32_t>(data[bytes >> 1]) << 24;
  const uint32_t reversed = Reversed(all);
  const uint32_t turned = reversed << 13 | reversed >> 19;
  const uint64_t low = (Secret(0) ^ Secret(0) >> 32) & 0xFFFFFFFFU;
  const uint64_t high = (Secret(8) ^ Secret(8) >> 32) & 0xFFFFFFFFU;
  return {AvalancheOfXxh64(low ^ all), AvalancheOfXxh64(high ^ turned)};
}

TENSORCAST_HOST_DEVICE inline Hash HashUpTo8(const uint8_t* data, uint64_t bytes) {
  const uint64_t all = Load32(data) | static_cast<uint64_t>(Load32(data + bytes - 4)) << 32;
  Hash hash = Product(Secret(16) ^ Secret(24) ^ all, kPrime64A + (bytes << 2));
  hash.high += hash.low << 1;
  hash.low ^= hash.high >> 3;
  hash.low ^= hash.low >> 35;
  hash.low *= kPrimeMixB;
  hash.low ^= hash.low >> 28;
  hash.high = Avalanche(hash.high);
  return hash;
}

TENSORCAST_HOST_DEVICE inline Hash HashUpTo16(const uint8_t* data, uint64_t bytes) {
  const uint64_t first = Load64(data);
  const uint64_t last = Load64(data + bytes - 8);
  const uint64_t mixed_last = Secret(48) ^ Secret(56) ^ last;
  Hash product = Product(Secret(32) ^ Secret(40) ^ first ^ last, kPrime64A);
  product.low += (bytes - 1) << 54;
  product.high += (mixed_last & ~uint64_t{0xFFFFFFFFU}) + (mixed_last & 0xFFFFFFFFU) * kPrime32B;
  product.low ^= Reversed(product.high);
  const Hash hash = Product(product.low, kPrime64B);
  return {Avalanche(hash.low), Avalanche(hash.high + product.high * kPrime64B)};
}

// Mixes `a` into sums.low, `b` into sums.high (16 bytes each); then XORs in the sum of the other's words.
TENSORCAST_HOST_DEVICE inline void MixPair(Hash& sums, const uint8_t* a, const uint8_t* b, int secret) {
  const Words of_a = LoadWords(a);
  const Words of_b = LoadWords(b);
  sums.low += FoldedProduct(of_a.first ^ Secret(secret), of_a.second ^ Secret(secret + 8));
  sums.low ^= of_b.first + of_b.second;
  sums.high += FoldedProduct(of_b.first ^ Secret(secret + 16), of_b.second ^ Secret(secret + 24));
  sums.high ^= of_a.first + of_a.second;
}

TENSORCAST_HOST_DEVICE inline Hash FinishPairs(const Hash& sums, uint64_t bytes) {
  const uint64_t high = sums.low * kPrime64A + sums.high * kPrime64D + bytes * kPrime64B;
  return {Avalanche(sums.low + sums.high), uint64_t{0} - Avalanche(high)};
}

// Mixes pairs of pieces that are equally far from the two ends, from the middle outwards.
TENSORCAST_HOST_DEVICE inline Hash HashUpTo128(const uint8_t* data, uint64_t bytes) {
  Hash sums = {bytes * kPrime64A, 0};
  for (int pair = static_cast<int>((bytes - 1) / 32); pair >= 0; --pair) {
    MixPair(sums, data + pair * 16, data + bytes - pair * 16 - 16, pair * 32);
  }
  return FinishPairs(sums, bytes);
}

TENSORCAST_HOST_DEVICE inline Hash HashUpTo240(const uint8_t* data, uint64_t bytes) {
  Hash sums = {bytes * kPrime64A, 0};
  const int pairs = static_cast<int>(bytes / 32);
  for (int pair = 0; pair < 4; ++pair) MixPair(sums, data + pair * 32, data + pair * 32 + 16, pair * 32);
  sums = {Avalanche(sums.low), Avalanche(sums.high)};
  for (int pair = 4; pair < pairs; ++pair) {
    MixPair(sums, data + pair * 32, data + pair * 32 + 16, kLaterPairsSecret + (pair - 4) * 32);
  }
  MixPair(sums, data + bytes - 16, data + bytes - 32, kLastPairSecret);
  return FinishPairs(sums, bytes);
}

TENSORCAST_HOST_DEVICE inline Hash HashShort(const uint8_t* data, uint64_t bytes) {
  if (bytes == 0) return HashOfNothing();
  if (bytes <= 3) return HashUpTo3(data, static_cast<uint32_t>(bytes));
  if (bytes <= 8) return HashUpTo8(data, bytes);
  if (bytes <= 16) return HashUpTo16(data, bytes);
  return bytes <= 128 ? HashUpTo128(data, bytes) : HashUpTo240(data, bytes);
}

// --- longer inputs

TENSORCAST_HOST_DEVICE inline uint64_t FirstAccumulator(int word) {
  constexpr uint64_t kFirst[kStripeWords] = {kPrime32C, kPrime64A, kPrime64B, kPrime64C,
                                             kPrime64D, kPrime32B, kPrime64E, kPrime32A};
  return kFirst[word];
}

// The value that a word of a stripe adds to its accumulator; `partner` is the other word of its pair.
TENSORCAST_HOST_DEVICE inline uint64_t Contribution(uint64_t word, uint64_t partner, uint64_t secret) {
  const uint64_t mixed = word ^ secret;
  return (mixed & 0xFFFFFFFFU) * (mixed >> 32) + partner;
}

TENSORCAST_HOST_DEVICE inline uint64_t Scrambled(uint64_t accumulator, uint64_t secret) {
  return (accumulator ^ accumulator >> 47 ^ secret) * kPrime32A;
}

// The values that a block adds to two accumulators. `column` points to their two words in the first stripe.
template <Words (*kLoad)(const uint8_t*)>
TENSORCAST_HOST_DEVICE inline Words SumColumn(const uint8_t* column, const uint64_t* secret) {
  Words sum;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int stripe = 0; stripe < kBlockStripes; ++stripe) {
    const Words words = kLoad(column + stripe * kStripeBytes);
    sum.first += Contribution(words.first, words.second, secret[stripe]);
    sum.second += Contribution(words.second, words.first, secret[stripe + 1]);
  }
  return sum;
}

// Not inlined: its many loads of single bytes would take registers from the aligned case.
TENSORCAST_HOST_DEVICE TENSORCAST_NOINLINE inline Words SumUnalignedColumn(const uint8_t* column,
                                                                           const uint64_t* secret) {
  return SumColumn<LoadWords>(column, secret);
}

// Computes two words of a block's sums: 2 * pair and 2 * pair + 1.
TENSORCAST_HOST_DEVICE inline void SumPair(const uint8_t* block, int pair, const uint64_t* secret,
                                           uint64_t* sums) {
  const uint8_t* const column = block + pair * sizeof(Words);
  const bool aligned = reinterpret_cast<uintptr_t>(column) % sizeof(Words) == 0;
  const Words sum = aligned ? SumColumn<LoadAlignedWords>(column, secret + 2 * pair)
                            : SumUnalignedColumn(column, secret + 2 * pair);
  sums[2 * pair] = sum.first;
  sums[2 * pair + 1] = sum.second;
}

// One accumulator, plus the stripes after the last block that DigestLong summed, plus the last 64 bytes of
// the input, which may overlap these stripes.
TENSORCAST_HOST_DEVICE inline uint64_t WithEnd(uint64_t accumulator, int word, const uint8_t* data,
                                               uint64_t bytes) {
  const uint64_t begin = (bytes - 1) / kBlockBytes * kBlockBytes;
  const int stripes = static_cast<int>((bytes - 1 - begin) / kStripeBytes);
  for (int stripe = 0; stripe < stripes; ++stripe) {
    const uint8_t* const words = data + begin + stripe * kStripeBytes;
    accumulator +=
        Contribution(Load64(words + 8 * word), Load64(words + 8 * (word ^ 1)), SecretWord(stripe + word));
  }
  const uint8_t* const last = data + bytes - kStripeBytes;
  return accumulator + Contribution(Load64(last + 8 * word), Load64(last + 8 * (word ^ 1)),
                                    Secret(kLastStripeSecret + 8 * word));
}

TENSORCAST_HOST_DEVICE inline uint64_t Merged(const uint64_t* accumulators, uint64_t first, int secret) {
  uint64_t merged = first;
  for (int word = 0; word < kStripeWords; word += 2) {
    merged += FoldedProduct(accumulators[word] ^ Secret(secret + 8 * word),
                            accumulators[word + 1] ^ Secret(secret + 8 * word + 8));
  }
  return Avalanche(merged);
}

// Writes the hash in canonical byte order: the most significant byte first.
TENSORCAST_HOST_DEVICE inline void Write(const Hash& hash, uint8_t* digest) {
  const uint64_t words[2] = {Reversed(hash.high), Reversed(hash.low)};
  std::memcpy(digest, words, kDigestBytes);
}

template <typename Team>
TENSORCAST_HOST_DEVICE inline void DigestLong(const Team& team, const uint8_t* data, uint64_t bytes,
                                              Scratch& scratch, uint8_t* digest) {
  team.Each([&scratch](int lane) {
    if (lane < kSecretWords) scratch.secret[lane] = SecretWord(lane);
    if (lane < kStripeWords) scratch.accumulators[lane] = FirstAccumulator(lane);
  });
  const uint64_t blocks = (bytes - 1) / kBlockBytes;
  const uint64_t tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
  for (uint64_t tile = 0; tile <= tiles; ++tile) {
    team.Each([=, &scratch](int lane) {
      if (lane < kSumLanes) {
        const int of_tile = lane / kLanesOfBlock;
        const uint64_t block = tile * kTileBlocks + of_tile;
        if (block >= blocks) return;
        SumPair(data + block * kBlockBytes, lane % kLanesOfBlock, scratch.secret,
                scratch.sums[tile % 2][of_tile]);
        return;
      }
      const int word = lane - kSumLanes;
      if (word >= kStripeWords || tile == 0) return;
      const uint64_t summed = blocks - (tile - 1) * kTileBlocks;
      const int count = summed < kTileBlocks ? static_cast<int>(summed) : kTileBlocks;
      const uint64_t secret = scratch.secret[kScrambleSecret / 8 + word];
      uint64_t accumulator = scratch.accumulators[word];
      for (int block = 0; block < count; ++block) {
        accumulator = Scrambled(accumulator + scratch.sums[(tile - 1) % 2][block][word], secret);
      }
      scratch.accumulators[word] = accumulator;
    });
  }
  team.Each([=, &scratch](int lane) {
    if (lane < kStripeWords) {
      scratch.accumulators[lane] = WithEnd(scratch.accumulators[lane], lane, data, bytes);
    }
  });
  team.Each([=, &scratch](int lane) {
    if (lane != 0) return;
    Write({Merged(scratch.accumulators, bytes * kPrime64A, kLowMergeSecret),
           Merged(scratch.accumulators, ~(bytes * kPrime64B), kHighMergeSecret)},
          digest);
  });
}

}  // namespace internal

// Writes the digest of `bytes` bytes at `data` to the kDigestBytes at `digest`, in canonical byte order. On a
// GPU every lane calls this function with the same arguments. Team::Each(work) calls work(lane) for each of
// the kLanes lanes and returns when all calls have returned.
template <typename Team>
TENSORCAST_HOST_DEVICE inline void DigestRange(const Team& team, const uint8_t* data, uint64_t bytes,
                                               Scratch& scratch, uint8_t* digest) {
  if (bytes > kMaxShortBytes) return internal::DigestLong(team, data, bytes, scratch, digest);
  team.Each([=](int lane) {
    if (lane == 0) internal::Write(internal::HashShort(data, bytes), digest);
  });
}

}  // namespace tensorcast::xxh3
