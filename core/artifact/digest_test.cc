#include "core/artifact/digest.h"

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/artifact/test_util.h"
#include "gtest/gtest.h"

namespace tensorcast::digest_test {
namespace {

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// Sizes around every border that the implementation has: xxHash's short inputs and stripes, cache lines, the
// copy's and the fused step's.
constexpr size_t kSizes[] = {0,     1,     3,     16,    17,    63,           64,    65,    128,     240,
                             241,   1024,  2047,  2048,  2049,  2111,         2112,  4096,  16383,   16384,
                             16385, 16448, 32767, 32768, 32769, 32768 + 1024, 49152, 65536, 100'003, 262'144};

// Reference values from xxHash's portable inline build, without dispatch, as two 64-bit halves in
// hexadecimal.
TEST(Digest, ComputeDigest_MatchesXxh3ReferenceValues) {
  EXPECT_EQ(ComputeDigest({}).ToHex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ComputeDigest(AsBytes("a")).ToHex(), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(ComputeDigest(AsBytes(std::string(1000, 'x'))).ToHex(), "50a1af5a5f2dcf01c0a4877b962cba82");
}

// Reference values from the Rust implementation's b3sum.
TEST(Blake3Digest, ComputeBlake3_MatchesReferenceValues) {
  EXPECT_EQ(ComputeBlake3({}).ToHex(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
  EXPECT_EQ(ComputeBlake3(AsBytes("a")).ToHex(),
            "17762fddd969a453925d65717ac3eea21320b66b54342fde15128d6caf21215f");
  EXPECT_EQ(ComputeBlake3(AsBytes(std::string(1000, 'x'))).ToHex(),
            "ff6f2cf7750b0d32858b758ef1cd7971064f53e81ec62ff560a953792599ca69");
  std::string counted(100'003, '\0');
  for (size_t i = 0; i < counted.size(); ++i) counted[i] = static_cast<char>(i % 251);
  EXPECT_EQ(ComputeBlake3(AsBytes(counted)).ToHex(),
            "ecbf9ff05e2ec5fd331a6fb97fa198df8e18b631c7abca6e8ebaa3bf5a5c0493");
}

TEST(Blake3Digest, Blake3OfPieces_EqualsBlake3OfWhole) {
  std::string bytes(5000, 'x');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  const auto all = std::as_writable_bytes(std::span(bytes));
  const std::array<std::span<std::byte>, 4> pieces = {all.first(1), all.subspan(1, 1023),
                                                      all.subspan(1024, 0), all.subspan(1024)};
  EXPECT_EQ(Blake3OfPieces(pieces), ComputeBlake3(all));
}

// Why there are two digests.
TEST(Digest, ForgedBytes_KeepXxh3ButChangeBlake3) {
  for (const size_t size : {size_t{1088}, size_t{5000}, size_t{1} << 20}) {
    for (uint32_t seed = 0; seed < 100; ++seed) {
      const std::vector<std::byte> bytes = RandomBytes(size, seed);
      std::vector<std::byte> forged = bytes;
      testing::ForgeKeepingXxh3(forged);
      ASSERT_NE(forged, bytes);
      ASSERT_EQ(ComputeDigest(forged), ComputeDigest(bytes)) << size << " bytes, seed " << seed;
      ASSERT_NE(ComputeBlake3(forged), ComputeBlake3(bytes));
      if (size > 5000) break;
    }
  }
}

TEST(Digest, DigestToHex_KeepsByteOrder) {
  Digest digest;
  digest.bytes = {0x00, 0x01, 0x0A, 0xF0, 0xFF, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0x80};
  EXPECT_EQ(digest.ToHex(), "00010af0ff05060708090a0b0c0d0e80");
}

TEST(Digest, ComputeDigest_ChangesWithEachChangedByte) {
  std::vector<std::byte> bytes = RandomBytes(5000, 1);
  const Digest original = ComputeDigest(bytes);
  for (const size_t position : {size_t{0}, size_t{64}, size_t{2500}, size_t{4999}}) {
    bytes[position] ^= std::byte{1};
    EXPECT_NE(ComputeDigest(bytes), original) << "byte " << position;
    bytes[position] ^= std::byte{1};
  }
  EXPECT_EQ(ComputeDigest(bytes), original);
}

TEST(DigestBuilder, DigestBuilder_GivesSameDigestsForAnyPieceSize) {
  const std::vector<std::byte> bytes = RandomBytes(300'000, 2);
  const ChunkDigests whole{.xxh3 = ComputeDigest(bytes), .blake3 = ComputeBlake3(bytes)};
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, size_t{65'537}, bytes.size()}) {
    DigestBuilder builder(/*with_blake3=*/true);
    for (size_t offset = 0; offset < bytes.size(); offset += piece) {
      builder.Update(std::span(bytes).subspan(offset, std::min(piece, bytes.size() - offset)));
      builder.Update({});
    }
    EXPECT_EQ(builder.FinishChunk(), whole) << "pieces of " << piece;
    EXPECT_EQ(builder.Finish(), whole.xxh3);
  }
}

TEST(DigestBuilder, DigestBuilder_OmitsBlake3ByDefault) {
  DigestBuilder builder;
  builder.Update(AsBytes("a"));
  EXPECT_EQ(builder.FinishChunk(), (ChunkDigests{.xxh3 = ComputeDigest(AsBytes("a")), .blake3 = {}}));
}

TEST(DigestBuilder, DigestBuilder_GivesEmptyDigestForNoBytes) {
  const ChunkDigests nothing{.xxh3 = ComputeDigest({}), .blake3 = ComputeBlake3({})};
  DigestBuilder builder(/*with_blake3=*/true);
  EXPECT_EQ(builder.FinishChunk(), nothing);
  builder.Update({});
  builder.UpdateAndCopy(nullptr, {});
  EXPECT_EQ(builder.FinishChunk(), nothing);
}

TEST(DigestBuilder, DigestBuilder_AcceptsBytesAfterFinish) {
  DigestBuilder builder;
  builder.Update(AsBytes("ab"));
  EXPECT_EQ(builder.Finish(), ComputeDigest(AsBytes("ab")));
  EXPECT_EQ(builder.Finish(), ComputeDigest(AsBytes("ab")));
  builder.Update(AsBytes("c"));
  EXPECT_EQ(builder.Finish(), ComputeDigest(AsBytes("abc")));
}

TEST(DigestBuilder, DigestBuilderReset_DiscardsPreviousBytes) {
  DigestBuilder builder(/*with_blake3=*/true);
  builder.Update(AsBytes("something else"));
  builder.Reset();
  builder.Update(AsBytes("ab"));
  EXPECT_EQ(builder.FinishChunk(),
            (ChunkDigests{.xxh3 = ComputeDigest(AsBytes("ab")), .blake3 = ComputeBlake3(AsBytes("ab"))}));
}

TEST(DigestBuilder, MovedDigestBuilder_KeepsItsState) {
  DigestBuilder first;
  first.Update(AsBytes("a"));
  DigestBuilder second = std::move(first);
  second.Update(AsBytes("b"));
  DigestBuilder third;
  third = std::move(second);
  EXPECT_EQ(third.Finish(), ComputeDigest(AsBytes("ab")));
}

TEST(DigestBuilder, UpdateAndCopy_CopiesWhatItDigestsAtAnyAlignment) {
  constexpr std::byte kGuard{0xA5};
  for (const size_t size : kSizes) {
    for (const size_t source_shift : {0, 1, 33}) {
      for (const size_t destination_shift : {0, 1, 15, 48}) {
        const std::vector<std::byte> buffer = RandomBytes(size + source_shift, 3);
        const auto source = std::span(buffer).subspan(source_shift);
        std::vector<std::byte> destination(size + destination_shift + 64, kGuard);
        DigestBuilder builder(/*with_blake3=*/true);
        builder.UpdateAndCopy(destination.data() + destination_shift, source);
        ASSERT_EQ(builder.Finish(), ComputeDigest(source)) << size;
        ASSERT_EQ(builder.FinishChunk().blake3, ComputeBlake3(source)) << size;
        ASSERT_TRUE(std::equal(source.begin(), source.end(), destination.begin() + destination_shift))
            << size;
        ASSERT_TRUE(std::all_of(destination.begin(), destination.begin() + destination_shift,
                                [](std::byte b) { return b == kGuard; }));
        ASSERT_TRUE(std::all_of(destination.begin() + destination_shift + size, destination.end(),
                                [](std::byte b) { return b == kGuard; }));
      }
    }
  }
}

TEST(DigestBuilder, DigestBuilder_MixesUpdateAndUpdateAndCopy) {
  const std::vector<std::byte> bytes = RandomBytes(50'000, 4);
  std::vector<std::byte> copy(bytes.size());
  DigestBuilder builder;
  builder.Update(std::span(bytes).first(777));
  builder.UpdateAndCopy(copy.data(), std::span(bytes).subspan(777, 40'000));
  builder.Update(std::span(bytes).subspan(40'777));
  EXPECT_EQ(builder.Finish(), ComputeDigest(bytes));
}

}  // namespace
}  // namespace tensorcast::digest_test
