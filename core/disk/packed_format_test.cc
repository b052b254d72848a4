#include "core/disk/packed_format.h"

#include <random>

#include "absl/strings/escaping.h"
#include "core/artifact/digest.h"
#include "core/artifact/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::packed_format_test {
namespace {

using ::testing::HasSubstr;

constexpr PackedHeader kHeader{
    .manifest_offset = 4096, .manifest_bytes = 300, .image_offset = 8192, .image_bytes = 5120};

absl::StatusOr<PackedHeader> Decode(std::string_view bytes, uint64_t file_bytes = kHeader.file_bytes()) {
  return DecodePackedHeader(std::as_bytes(std::span(bytes)), file_bytes);
}

// With a digest that fits, so that only the fields themselves can be wrong.
std::string Reseal(std::string bytes) {
  const Digest digest = ComputeDigest(std::as_bytes(std::span(bytes)).first(48));
  std::copy(digest.bytes.begin(), digest.bytes.end(), bytes.begin() + 48);
  return bytes;
}

TEST(PackedFormat, PackedHeader_EncodesToGoldenBytes) {
  const std::string bytes = EncodePackedHeader(kHeader);
  ASSERT_EQ(bytes.size(), kPackedHeaderBytes);
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(0, 64)),
            "54435041434b4544"  // TCPACKED
            "01000000"
            "00100000"  // version, header bytes
            "0010000000000000"
            "2c01000000000000"
            "0020000000000000"
            "0014000000000000"
            "2172794318012bde0a1f0819c37ad9a6");
  EXPECT_EQ(bytes.substr(64), std::string(kPackedHeaderBytes - 64, '\0'));
}

TEST(PackedFormat, PackedHeader_SurvivesRoundTrip) {
  EXPECT_EQ(kHeader.file_bytes(), 16384u);
  const auto header = Decode(EncodePackedHeader(kHeader));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(*header, kHeader);
}

TEST(PackedFormat, DamagedPackedHeader_IsRefusedAtEveryByte) {
  const std::string good = EncodePackedHeader(kHeader);
  for (size_t at = 0; at < kPackedHeaderBytes; at += at < 64 ? 1 : 61) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    EXPECT_FALSE(Decode(bad).ok()) << "byte " << at;
  }
  EXPECT_FALSE(Decode(good.substr(0, 4095)).ok());
  EXPECT_FALSE(Decode("").ok());
}

TEST(PackedFormat, PackedHeader_RefusesOtherFileSize) {
  const std::string bytes = EncodePackedHeader(kHeader);
  EXPECT_FALSE(Decode(bytes, kHeader.file_bytes() - 4096).ok());
  EXPECT_FALSE(Decode(bytes, kHeader.file_bytes() + 1).ok());
  EXPECT_FALSE(Decode(bytes, 0).ok());
}

TEST(PackedFormat, PackedHeader_RefusesPartsOutOfOrder) {
  const auto refused = [](PackedHeader header) { return !Decode(EncodePackedHeader(header)).ok(); };
  constexpr uint64_t kHuge = ~uint64_t{0};
  for (const uint64_t wrong : {uint64_t{0}, uint64_t{8191}, kHuge, kHuge - 4095}) {
    PackedHeader header = kHeader;
    header.image_offset = wrong;
    EXPECT_TRUE(refused(header)) << "image at " << wrong;
    header = kHeader;
    header.manifest_offset = wrong;
    EXPECT_TRUE(refused(header)) << "manifest at " << wrong;
  }
  for (const uint64_t wrong : {uint64_t{4097}, kHuge, kHuge - 4095}) {
    PackedHeader header = kHeader;
    header.manifest_bytes = wrong;
    EXPECT_TRUE(refused(header)) << "manifest of " << wrong;
  }
  for (const uint64_t wrong :
       {uint64_t{0}, uint64_t{4096}, uint64_t{8193}, kHuge, kHuge - 4095, kHuge - 8191}) {
    PackedHeader header = kHeader;
    header.image_bytes = wrong;
    EXPECT_TRUE(refused(header)) << "image of " << wrong;
  }
}

TEST(PackedFormat, LaterPackedVersion_IsUnimplementedInsteadOfInvalid) {
  std::string bytes = EncodePackedHeader(kHeader);
  bytes[8] = 2;
  EXPECT_EQ(Decode(bytes).status().code(), absl::StatusCode::kUnimplemented);
  bytes[8] = 0;
  EXPECT_EQ(Decode(Reseal(bytes)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PackedFormat, RandomPackedHeader_IsRefusedUnlessItDescribesFile) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = EncodePackedHeader(kHeader);
    for (int k = 1 + static_cast<int>(random() % 3); k > 0; --k) {
      bytes[16 + random() % 32] = static_cast<char>(random());
    }
    const auto header = Decode(Reseal(bytes));
    if (!header.ok()) continue;
    EXPECT_EQ(header->file_bytes(), kHeader.file_bytes());
    EXPECT_LE(header->manifest_offset + header->manifest_bytes, header->image_offset);
  }
}

TEST(PackedFormat, PackedFileName_ContainsArtifactId) {
  const std::string id = ArtifactId("manifest");
  const std::string name = PackedFileName(id);
  EXPECT_EQ(name.find(':'), std::string::npos);
  EXPECT_THAT(name, HasSubstr("tc2-"));
  EXPECT_EQ(ArtifactIdOfFileName(name), id);
  for (const char* other : {"", "notes.txt", ".tcpack", "tc2-short.tcpack", "x"}) {
    EXPECT_EQ(ArtifactIdOfFileName(other), "") << other;
  }
  EXPECT_EQ(ArtifactIdOfFileName(name + ".partial"), "");
  EXPECT_EQ(ArtifactIdOfFileName(id + ".tcpack"), "");  // not the name under which it would be opened
}

}  // namespace
}  // namespace tensorcast::packed_format_test
