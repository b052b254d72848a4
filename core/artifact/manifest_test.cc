#include "core/artifact/manifest.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/artifact/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::manifest_test {
namespace {

using ::testing::HasSubstr;

Tensor MakeTensor(std::string name, DType dtype, std::vector<uint64_t> shape) {
  const uint64_t bytes = *TensorBytes(dtype, shape);
  return Tensor{.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .nbytes = bytes};
}

ImageLayout LayoutOf(std::vector<Tensor> tensors) {
  ImageLayout layout{.tensors = std::move(tensors)};
  EXPECT_TRUE(AssignOffsets(layout).ok());
  return layout;
}

// Both digests of a chunk: bytes from `first` on, each one more than the one before.
ChunkDigests DigestsFrom(uint8_t first) {
  ChunkDigests digests{.xxh3 = {}, .blake3 = Blake3Digest()};
  std::iota(digests.xxh3.bytes.begin(), digests.xxh3.bytes.end(), first);
  std::iota(digests.blake3->bytes.begin(), digests.blake3->bytes.end(), digests.xxh3.bytes.back() + 1);
  return digests;
}

ImageLayout ExampleLayout() {
  return LayoutOf({MakeTensor("w", DType::kBF16, {2, 3}), MakeTensor("s", DType::kF32, {})});
}

// The worked example of FORMAT.md.
std::shared_ptr<const Manifest> Example() {
  auto manifest = Manifest::Create(ExampleLayout(), {DigestsFrom(0xA0)}, {{"format", "pt"}});
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *manifest;
}

constexpr std::string_view kExampleHex =
    "54434d46"
    "0200"
    "02"
    "00"  // magic, version, digest algorithms, kind
    "0000100000000000"
    "0002000000000000"  // chunk size, image size
    "02000000"
    "01000000"  // tensors, metadata entries
    "01000000"
    "77"
    "0d"  // "w", BF16
    "02000000"
    "0200000000000000"
    "0300000000000000"
    "0000000000000000"
    "0c00000000000000"  // offset, size
    "01000000"
    "73"
    "10"
    "00000000"  // "s", F32, no dimensions
    "0001000000000000"
    "0400000000000000"
    "06000000"
    "666f726d6174"
    "02000000"
    "7074"
    "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"                                   // XXH3
    "b0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecf";  // BLAKE3
constexpr std::string_view kExampleId = "tc2:tekuzysohm52rhigfgea44ezivlz4hslgtlc6yl4fnjgug3ymxiq";

std::string Unhex(std::string_view hex) {
  std::string bytes;
  EXPECT_TRUE(absl::HexStringToBytes(hex, &bytes));
  return bytes;
}

std::string ExampleBytes() { return Unhex(kExampleHex); }

void ExpectRejected(std::string_view bytes, std::string_view reason) {
  const auto manifest = Manifest::Decode(bytes);
  ASSERT_EQ(manifest.status().code(), absl::StatusCode::kInvalidArgument) << "expected: " << reason;
  EXPECT_THAT(manifest.status().message(), HasSubstr(reason));
}

// The example with `replacement` in place of the bytes at `position`.
std::string Patched(size_t position, std::string_view replacement_hex) {
  std::string bytes = ExampleBytes();
  const std::string replacement = Unhex(replacement_hex);
  bytes.replace(position, replacement.size(), replacement);
  return bytes;
}

TEST(Manifest, Manifest_EncodesToGoldenBytesAndId) {
  const auto manifest = Example();
  EXPECT_EQ(absl::BytesToHexString(manifest->bytes()), kExampleHex);
  EXPECT_EQ(manifest->id(), kExampleId);
}

TEST(Manifest, ManifestDecode_ReadsGoldenBytes) {
  const auto manifest = Manifest::Decode(ExampleBytes());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto example = Example();
  EXPECT_EQ((*manifest)->layout(), example->layout());
  EXPECT_EQ((*manifest)->digests(), example->digests());
  EXPECT_EQ((*manifest)->metadata(), example->metadata());
  EXPECT_EQ((*manifest)->bytes(), example->bytes());
  EXPECT_EQ((*manifest)->id(), example->id());
}

TEST(Manifest, EmptyManifest_SurvivesRoundTrip) {
  const auto manifest = Manifest::Create(ImageLayout{}, {}, {});
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ((*manifest)->bytes().size(), 32u);
  const auto decoded = Manifest::Decode((*manifest)->bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ((*decoded)->id(), (*manifest)->id());
  EXPECT_EQ((*decoded)->Find("w"), nullptr);
}

TEST(Manifest, EmptyTensorsScalarsAndAllDtypes_SurviveRoundTrip) {
  std::vector<Tensor> tensors = {MakeTensor("empty", DType::kF32, {3, 0}),
                                 MakeTensor("scalar", DType::kF64, {})};
  for (const DTypeInfo& info : AllDTypes()) {
    tensors.push_back(MakeTensor(std::string(info.name), info.dtype, {4, 2}));
  }
  const ImageLayout layout = LayoutOf(std::move(tensors));
  const std::map<std::string, std::string> metadata = {
      {"", "empty key"}, {"empty value", ""}, {"\xC3\xA9", "\xE2\x82\xAC"}};
  const auto manifest = Manifest::Create(layout, testing::NoDigests(layout), metadata);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto decoded = Manifest::Decode((*manifest)->bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ((*decoded)->layout(), layout);
  EXPECT_EQ((*decoded)->metadata(), metadata);
}

TEST(Manifest, ManifestId_ChangesWithEveryField) {
  const ImageLayout layout = LayoutOf({MakeTensor("w", DType::kF32, {2})});
  const ChunkDigests digests = DigestsFrom(1);
  const auto id = [](const ImageLayout& of, const ChunkDigests& chunk,
                     const std::map<std::string, std::string>& metadata = {}) {
    return Manifest::Create(of, {chunk}, metadata).value()->id();
  };
  EXPECT_EQ(id(layout, digests), id(layout, digests));
  EXPECT_NE(id(layout, {.xxh3 = {}, .blake3 = digests.blake3}), id(layout, digests));
  EXPECT_NE(id(layout, {.xxh3 = digests.xxh3, .blake3 = Blake3Digest()}), id(layout, digests));
  EXPECT_NE(id(layout, digests, {{"a", "b"}}), id(layout, digests));
  EXPECT_NE(id(LayoutOf({MakeTensor("v", DType::kF32, {2})}), digests), id(layout, digests));
  EXPECT_NE(id(LayoutOf({MakeTensor("w", DType::kI32, {2})}), digests), id(layout, digests));
  EXPECT_NE(id(LayoutOf({MakeTensor("w", DType::kF32, {1, 2})}), digests), id(layout, digests));
}

TEST(Manifest, Find_ReturnsTensorByNameOrNull) {
  const ImageLayout layout = LayoutOf(
      {MakeTensor("z", DType::kU8, {1}), MakeTensor("a", DType::kU8, {1}), MakeTensor("m", DType::kU8, {1})});
  const auto manifest = *Manifest::Create(layout, testing::NoDigests(layout), {});
  for (const std::string name : {"z", "a", "m"}) {
    ASSERT_NE(manifest->Find(name), nullptr);
    EXPECT_EQ(manifest->Find(name)->name, name);
  }
  EXPECT_EQ(manifest->Find("b"), nullptr);
  EXPECT_EQ(manifest->Find(""), nullptr);
  EXPECT_EQ(manifest->Find("zz"), nullptr);
}

TEST(Manifest, Create_RejectsInvalidDigestsMetadataAndLayout) {
  const ImageLayout layout = LayoutOf({MakeTensor("w", DType::kF32, {2})});
  const ChunkDigests digests = DigestsFrom(1);
  const auto reason = [](const absl::StatusOr<std::shared_ptr<const Manifest>>& manifest) {
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(manifest.status().message());
  };
  EXPECT_THAT(reason(Manifest::Create(layout, {}, {})), HasSubstr("there are 0 digests for 1 chunks"));
  EXPECT_THAT(reason(Manifest::Create(layout, {digests, digests}, {})),
              HasSubstr("there are 2 digests for 1 chunks"));
  EXPECT_THAT(reason(Manifest::Create(layout, {{.xxh3 = digests.xxh3, .blake3 = {}}}, {})),
              HasSubstr("chunk 0 has no BLAKE3"));
  EXPECT_THAT(reason(Manifest::Create(layout, {digests}, {{"k", "\xFF"}})), HasSubstr("UTF-8"));
  EXPECT_THAT(reason(Manifest::Create(layout, {digests}, {{"\xFF", "v"}})), HasSubstr("UTF-8"));
  ImageLayout moved = layout;
  moved.tensors[0].offset = 256;
  EXPECT_THAT(reason(Manifest::Create(moved, {digests}, {})), HasSubstr("offset 256"));
  ImageLayout chunked = layout;
  chunked.chunk_bytes = 4096;
  EXPECT_THAT(reason(Manifest::Create(chunked, {digests}, {})),
              HasSubstr("an image of 256 bytes is cut into chunks of 1048576"));
}

TEST(ManifestDecode, OtherKind_IsRefusedByNumber) {
  ExpectRejected(
      Patched(7, "03"),
      "the artifact kind is 3, but this build knows only 0 (tensors), 1 (files) and 2 (difference)");
  ExpectRejected(Patched(7, "ff"), "the artifact kind is 255");
}

TEST(ManifestDecode, FilesKindWithTensors_IsRejected) {
  ExpectRejected(Patched(7, "01"), "file \"w\" of the manifest: a file must be U8 with one dimension");
}

ImageLayout FilesOf(const std::vector<std::string>& names) {
  std::vector<Tensor> files;
  for (const std::string& name : names) files.push_back(MakeTensor(name, DType::kU8, {3}));
  return LayoutOf(std::move(files));
}

TEST(FilesManifest, Files_RoundTripAndDifferFromTensors) {
  const ImageLayout layout = FilesOf({"a/c", "config.json"});
  const auto files = Manifest::Create(layout, {DigestsFrom(0)}, {}, ArtifactKind::kFiles);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->bytes()[7], 1);
  const auto read = Manifest::Decode((*files)->bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)->kind(), ArtifactKind::kFiles);
  EXPECT_EQ((*read)->layout(), layout);
  EXPECT_NE((*read)->id(), (*Manifest::Create(layout, {DigestsFrom(0)}, {}))->id());
}

TEST(FilesManifest, NamesOutsideTheFolder_AreRejected) {
  const std::string long_part(256, 'a');
  for (const std::string& name : std::vector<std::string>{"/etc/passwd", "../a", "a/../b", "./a", "a//b",
                                                          "a/", "", ".", "a\nb", long_part}) {
    const absl::Status status = CheckFileLayout(FilesOf({name}));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), HasSubstr("the name is not a plain relative path"));
  }
  EXPECT_TRUE(
      CheckFileLayout(FilesOf({"..a", ".gitattributes", "1_Pooling/config.json", "\xc3\xa9 b"})).ok());
}

TEST(FilesManifest, UnsortedNamesAndFileThatIsAFolder_AreRejected) {
  EXPECT_THAT(CheckFileLayout(FilesOf({"b", "a"})).message(),
              HasSubstr("the name does not come after the name of the previous file"));
  EXPECT_THAT(CheckFileLayout(FilesOf({"a", "a-b", "a/c"})).message(),
              HasSubstr("another file has this path as a folder"));
}

// Metadata of a difference between two made-up artifacts.
std::map<std::string, std::string> Ends() {
  return {{"base", std::string(kExampleId)}, {"target", ArtifactId("target")}};
}

ImageLayout DifferenceOf(std::vector<Tensor> tensors = {MakeTensor("index", DType::kU8, {5}),
                                                        MakeTensor("records", DType::kU8, {0})}) {
  return LayoutOf(std::move(tensors));
}

absl::StatusOr<std::shared_ptr<const Manifest>> CreateDifference(
    const ImageLayout& layout, const std::map<std::string, std::string>& metadata) {
  return Manifest::Create(layout, {DigestsFrom(0)}, metadata, ArtifactKind::kDifference);
}

TEST(DifferenceManifest, Difference_RoundTrips) {
  const auto difference = CreateDifference(DifferenceOf(), Ends());
  ASSERT_TRUE(difference.ok()) << difference.status();
  EXPECT_EQ((*difference)->bytes()[7], 2);
  const auto read = Manifest::Decode((*difference)->bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)->kind(), ArtifactKind::kDifference);
  EXPECT_EQ((*read)->metadata(), Ends());
  EXPECT_EQ((*read)->id(), (*difference)->id());
}

TEST(DifferenceManifest, OtherTensors_AreRejected) {
  const Tensor index = MakeTensor("index", DType::kU8, {5});
  const Tensor records = MakeTensor("records", DType::kU8, {7});
  const Tensor third = MakeTensor("third", DType::kU8, {1});
  for (const std::vector<Tensor>& tensors :
       std::vector<std::vector<Tensor>>{{index},
                                        {records, index},
                                        {index, records, third},
                                        {index, third},
                                        {index, MakeTensor("records", DType::kI8, {7})},
                                        {MakeTensor("index", DType::kU8, {5, 1}), records}}) {
    EXPECT_THAT(CreateDifference(DifferenceOf(tensors), Ends()).status().message(),
                HasSubstr("the tensors must be index and records"));
  }
}

TEST(DifferenceManifest, OtherMetadata_IsRejected) {
  const auto reason = [](std::map<std::string, std::string> changes) {
    changes.merge(Ends());
    return std::string(CreateDifference(DifferenceOf(), changes).status().message());
  };
  EXPECT_THAT(reason({{"base", "llama/prod"}}),
              HasSubstr("the metadata entry base is missing or is not an artifact id"));
  EXPECT_THAT(reason({{"target", ""}}),
              HasSubstr("the metadata entry target is missing or is not an artifact id"));
  EXPECT_THAT(reason({{"target", std::string(kExampleId)}}),
              HasSubstr("base and target are the same artifact"));
  EXPECT_THAT(reason({{"format", "pt"}}), HasSubstr("entries other than base and target"));
  EXPECT_THAT(CreateDifference(DifferenceOf(), {{"base", std::string(kExampleId)}}).status().message(),
              HasSubstr("the metadata entry target is missing or is not an artifact id"));
}

TEST(ManifestDecode, DifferenceKindWithTensors_IsRejected) {
  ExpectRejected(Patched(7, "02"), "the tensors must be index and records");
}

TEST(DigestOfTensors, OrderAndBytes_DoNotMatter) {
  const auto digest = [](std::vector<Tensor> tensors, uint8_t bytes) {
    return (*Manifest::Create(LayoutOf(std::move(tensors)), {DigestsFrom(bytes)}, {}))->DigestOfTensors();
  };
  const Tensor w = MakeTensor("w", DType::kBF16, {2, 3});
  const Tensor s = MakeTensor("s", DType::kF32, {});
  const std::string one = digest({w, s}, 0);
  EXPECT_EQ(one.size(), 32u);
  EXPECT_EQ(digest({s, w}, 9), one);
  EXPECT_NE(digest({w}, 0), one);
  EXPECT_NE(digest({MakeTensor("w", DType::kF16, {2, 3}), s}, 0), one);
  EXPECT_NE(digest({MakeTensor("w", DType::kBF16, {3, 2}), s}, 0), one);
  EXPECT_NE(digest({MakeTensor("v", DType::kBF16, {2, 3}), s}, 0), one);
}

TEST(ManifestDecode, ManifestDecode_RejectsEveryTruncation) {
  const std::string bytes = ExampleBytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Manifest::Decode(std::string_view(bytes).substr(0, size)).ok()) << size << " bytes";
  }
}

TEST(ManifestDecode, ManifestDecode_RejectsTrailingBytes) {
  ExpectRejected(ExampleBytes() + '\0', "bytes are left");
}

// The encoding is unique: no other bytes decode to the same fields.
TEST(ManifestDecode, ChangedByte_IsRejectedOrEncodesAnotherManifest) {
  const auto encoded = [](const Manifest& manifest) {
    const auto again = Manifest::Create(manifest.layout(), manifest.digests(), manifest.metadata());
    EXPECT_TRUE(again.ok()) << again.status();
    return again.ok() ? (*again)->bytes() : "";
  };
  const std::string original = ExampleBytes();
  int accepted = 0;
  for (size_t position = 0; position < original.size(); ++position) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = original;
      changed[position] = static_cast<char>(value);
      const auto decoded = Manifest::Decode(changed);
      if (!decoded.ok() || changed == original) continue;
      ++accepted;
      ASSERT_EQ(encoded(**decoded), changed) << "byte " << position << " = " << value;
      ASSERT_NE((*decoded)->id(), kExampleId);
    }
  }
  EXPECT_GT(accepted, 48 * 255);  // at least every change of the digests
}

TEST(ManifestDecode, ManifestDecode_RejectsWrongPreamble) {
  ExpectRejected("", "at byte 0");
  ExpectRejected(Patched(0, "55"), "at byte 4: the magic of another format");
  ExpectRejected(Patched(4, "0100"), "the manifest has format 1, but this build knows only format 2");
  ExpectRejected(Patched(4, "0300"), "the manifest has format 3");
  ExpectRejected(Patched(6, "01"), "digest algorithm 1");
}

TEST(ManifestDecode, ManifestDecode_RejectsWrongChunkAndImageSizes) {
  ExpectRejected(Patched(8, "0100000000000000"), "the chunk size of 1 bytes");
  ExpectRejected(Patched(8, "0000000000000000"), "chunk size");
  for (const std::string_view chunk_bytes : {"0010000000000000", "0000080000000000", "0000200000000000"}) {
    ExpectRejected(Patched(8, chunk_bytes), "an image of 512 bytes is cut into chunks of 1048576");
  }
  ExpectRejected(Patched(16, "0003000000000000"),
                 "lay out an image of 768 bytes: the tensors and their padding end at byte 512");
  ExpectRejected(Patched(16, "ffffffffffffffff"), "2^32-1");
}

TEST(ManifestDecode, ManifestDecode_RejectsCountsBeforeAllocating) {
  ExpectRejected(Patched(24, "ffffffff"), "more items than the bytes hold");
  ExpectRejected(Patched(28, "ffffffff"), "a field past the end");
  ExpectRejected(Patched(32, "ffffffff"), "at byte 36: a field past the end");
  ExpectRejected(Patched(38, "ffffffff"), "at byte 42: more items than the bytes hold");
}

TEST(ManifestDecode, ManifestDecode_RejectsInvalidTensors) {
  ExpectRejected(Patched(36, "ff"), "lay out tensor \"\\xff\": the name is not valid UTF-8");
  ExpectRejected(Patched(36, "73"), "lay out tensor \"s\": two tensors have this name");
  ExpectRejected(Patched(37, "00"), "dtype value 0 is unknown");
  ExpectRejected(Patched(37, "17"), "dtype value 23 is unknown");
  ExpectRejected(Patched(42, "0300000000000000"), "has 12 bytes, but its dtype and shape need 18 bytes");
  ExpectRejected(Patched(42, "ffffffffffffffff"), "the number of elements does not fit in 64 bits");
  ExpectRejected(Patched(58, "0001000000000000"),
                 "tensor \"w\": the tensor is at offset 256 of the image instead of 0");
}

TEST(ManifestDecode, ManifestDecode_RejectsUnorderedRepeatedOrNonUtf8Metadata) {
  const auto manifest = *Manifest::Create(ImageLayout{}, {}, {{"a", "1"}, {"b", "2"}});
  const std::string& bytes = manifest->bytes();
  ExpectRejected(absl::StrReplaceAll(bytes, {{"a", "c"}}), "not in ascending order");
  ExpectRejected(absl::StrReplaceAll(bytes, {{"b", "a"}}), "not in ascending order");
  ExpectRejected(absl::StrReplaceAll(bytes, {{"b", "\xFF"}}), "UTF-8");
  ExpectRejected(absl::StrReplaceAll(bytes, {{"2", "\xFF"}}), "UTF-8");
}

TEST(ManifestDecode, ManifestDecode_RejectsImageSizeWithoutEnoughDigests) {
  // One tensor of 1 TiB, but no digests of its 65,536 chunks.
  const ImageLayout layout = LayoutOf({MakeTensor("w", DType::kU8, {4096})});
  std::string bytes = (*Manifest::Create(layout, testing::NoDigests(layout), {}))->bytes();
  bytes.replace(8, 8, Unhex("0000000100000000"));  // chunk size
  const std::string tebibyte = Unhex("0000000000010000");
  bytes.replace(16, 8, tebibyte);  // image size
  bytes.replace(42, 8, tebibyte);  // dimension
  bytes.replace(58, 8, tebibyte);  // tensor size
  ExpectRejected(bytes, "48 bytes are left for the digests of 65536 chunks");
}

TEST(Manifest, ManifestOf100000Tensors_SurvivesRoundTrip) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 100'000; ++i) {
    tensors.push_back(MakeTensor(absl::StrCat("model.layers.", i / 100, ".experts.", i % 100, ".weight"),
                                 DType::kBF16, {64, 2}));
  }
  const ImageLayout layout = LayoutOf(std::move(tensors));
  const auto manifest = Manifest::Create(layout, testing::NoDigests(layout), {});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto decoded = Manifest::Decode((*manifest)->bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ((*decoded)->layout(), layout);
  EXPECT_EQ((*decoded)->Find("model.layers.999.experts.99.weight"), &(*decoded)->layout().tensors.back());
}

TEST(ArtifactId, ArtifactId_IsBase32OfSha256) {
  // SHA-256 of nothing is e3b0c442...b855.
  EXPECT_EQ(ArtifactId(""), "tc2:4oymiquy7qobjgx36tejs35zeqt24qpemsnzgtfeswmrw6csxbkq");
  EXPECT_EQ(ArtifactId("abc"), "tc2:xj4bnp4pahh6uqkbidpf3lrceoyagyndsylxvhfucd7wd4qacwwq");
}

TEST(ArtifactId, IsArtifactId_AcceptsOnlyWholeIds) {
  const std::string id = Example()->id();
  EXPECT_TRUE(IsArtifactId(id));
  EXPECT_FALSE(IsArtifactId(""));
  EXPECT_FALSE(IsArtifactId("tc2:"));
  EXPECT_FALSE(IsArtifactId(id.substr(0, id.size() - 1)));
  EXPECT_FALSE(IsArtifactId(id + "a"));
  EXPECT_FALSE(IsArtifactId(id.substr(4)));
  EXPECT_FALSE(IsArtifactId("tc3:" + id.substr(4)));
  std::string upper = id;
  upper[10] = 'A';
  EXPECT_FALSE(IsArtifactId(upper));
  std::string foreign = id;
  foreign[10] = '1';
  EXPECT_FALSE(IsArtifactId(foreign));
  std::string stray_bits = id;
  stray_bits.back() = 'b';
  EXPECT_FALSE(IsArtifactId(stray_bits));
}

}  // namespace
}  // namespace tensorcast::manifest_test
