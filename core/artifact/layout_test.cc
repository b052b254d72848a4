#include "core/artifact/layout.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/test_artifact.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Tensor MakeTensor(std::string name, DType dtype, std::vector<uint64_t> shape) {
  const uint64_t bytes = *TensorBytes(dtype, shape);
  return Tensor{.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .nbytes = bytes};
}

ImageLayout LayoutOf(std::vector<Tensor> tensors) { return ImageLayout{.tensors = std::move(tensors)}; }

ImageLayout ChunkedLayout(uint64_t bytes, uint64_t chunk_bytes) {
  ImageLayout layout = LayoutOf({MakeTensor("w", DType::kU8, {bytes})});
  EXPECT_TRUE(AssignOffsets(layout).ok());
  layout.chunk_bytes = chunk_bytes;
  return layout;
}

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

void ExpectRejected(ImageLayout layout, std::string_view reason) {
  const ImageLayout before = layout;
  const absl::Status status = AssignOffsets(layout);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(reason));
  EXPECT_EQ(layout, before) << "an error must leave the layout as it was";
  EXPECT_EQ(ValidateLayout(layout).code(), absl::StatusCode::kInvalidArgument);
}

TEST(AssignOffsets, AssignOffsets_AlignsEachTensorTo256Bytes) {
  ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {1}), MakeTensor("b", DType::kF32, {64}),
                                 MakeTensor("c", DType::kU8, {257}), MakeTensor("d", DType::kF64, {})});
  ASSERT_TRUE(AssignOffsets(layout).ok());
  EXPECT_EQ(layout.tensors[0].offset, 0u);
  EXPECT_EQ(layout.tensors[1].offset, 256u);
  EXPECT_EQ(layout.tensors[2].offset, 512u);
  EXPECT_EQ(layout.tensors[3].offset, 1024u);
  EXPECT_EQ(layout.image_bytes, 1280u);
  EXPECT_TRUE(ValidateLayout(layout).ok());
}

TEST(AssignOffsets, AssignOffsets_GivesEmptyTensorsNoSpace) {
  ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {0}), MakeTensor("b", DType::kU8, {300}),
                                 MakeTensor("c", DType::kF32, {4, 0}), MakeTensor("d", DType::kU8, {1}),
                                 MakeTensor("e", DType::kU8, {0})});
  ASSERT_TRUE(AssignOffsets(layout).ok());
  EXPECT_EQ(layout.tensors[0].offset, 0u);
  EXPECT_EQ(layout.tensors[1].offset, 0u);
  EXPECT_EQ(layout.tensors[2].offset, 512u);
  EXPECT_EQ(layout.tensors[3].offset, 512u);
  EXPECT_EQ(layout.tensors[4].offset, 768u);
  EXPECT_EQ(layout.image_bytes, 768u);
}

TEST(AssignOffsets, AssignOffsets_MakesEmptyImageWithoutTensors) {
  ImageLayout layout;
  layout.image_bytes = 999;
  ASSERT_TRUE(AssignOffsets(layout).ok());
  EXPECT_EQ(layout.image_bytes, 0u);
  EXPECT_EQ(layout.chunk_count(), 0u);
  EXPECT_TRUE(ValidateLayout(layout).ok());
}

TEST(AssignOffsets, AssignOffsets_RejectsRepeatedAndNonUtf8Names) {
  ExpectRejected(LayoutOf({MakeTensor("", DType::kU8, {1}), MakeTensor("", DType::kU8, {1})}),
                 "lay out tensor \"\": two tensors have this name");
  ExpectRejected(LayoutOf({MakeTensor("a", DType::kU8, {1}), MakeTensor("b", DType::kU8, {1}),
                           MakeTensor("a", DType::kF32, {1})}),
                 "lay out tensor \"a\": two tensors have this name");
  ExpectRejected(LayoutOf({MakeTensor("a\xFF", DType::kU8, {1})}), "UTF-8");
}

TEST(AssignOffsets, AssignOffsets_RejectsSizeThatDtypeAndShapeDoNotGive) {
  Tensor wrong = MakeTensor("w", DType::kF32, {2});
  wrong.nbytes = 9;
  ExpectRejected(LayoutOf({wrong}),
                 "lay out tensor \"w\": the tensor has 9 bytes, but its dtype and shape need 8 bytes");
  Tensor unknown = MakeTensor("w", DType::kF32, {2});
  unknown.dtype = static_cast<DType>(99);
  ExpectRejected(LayoutOf({unknown}),
                 "lay out tensor \"w\": compute the size of a tensor: dtype value 99 is unknown");
}

TEST(AssignOffsets, AssignOffsets_RejectsImageOf2ToThe63Bytes) {
  ExpectRejected(LayoutOf({MakeTensor("w", DType::kU8, {UINT64_MAX})}), "2^63");
  ExpectRejected(LayoutOf({MakeTensor("v", DType::kU8, {uint64_t{1} << 62}),
                           MakeTensor("w", DType::kU8, {uint64_t{1} << 62})}),
                 "tensor \"w\"");
}

TEST(AssignOffsets, AssignOffsets_RejectsMoreChunksThanFitIn32Bits) {
  const uint64_t max = uint64_t{UINT32_MAX} * kMaxChunkBytes;
  ImageLayout layout = LayoutOf({MakeTensor("w", DType::kU8, {max})});
  ASSERT_TRUE(AssignOffsets(layout).ok());
  EXPECT_EQ(layout.chunk_count(), UINT32_MAX);
  ImageLayout larger = LayoutOf({MakeTensor("w", DType::kU8, {max + 1})});
  const ImageLayout before = larger;
  EXPECT_THAT(AssignOffsets(larger).message(), HasSubstr("2^32-1"));
  EXPECT_EQ(larger, before);
}

TEST(AssignOffsets, AssignOffsets_DerivesChunkSizeFromImageSize) {
  struct Example {
    uint64_t image_bytes;
    uint64_t chunk_bytes;
  };
  for (const Example& example :
       {Example{0, kMiB}, Example{256, kMiB}, Example{256 * kMiB, kMiB}, Example{512 * kMiB - 256, kMiB},
        Example{512 * kMiB, 2 * kMiB}, Example{kGiB - 256, 2 * kMiB}, Example{kGiB, 4 * kMiB},
        Example{3 * kGiB, 8 * kMiB}, Example{4 * kGiB - 256, 8 * kMiB}, Example{4 * kGiB, 16 * kMiB},
        Example{1000 * kGiB, 16 * kMiB}}) {
    EXPECT_EQ(ChunkBytesOf(example.image_bytes), example.chunk_bytes) << example.image_bytes;
    ImageLayout layout = LayoutOf({MakeTensor("w", DType::kU8, {example.image_bytes})});
    layout.chunk_bytes = 4096;
    ASSERT_TRUE(AssignOffsets(layout).ok());
    EXPECT_EQ(layout.chunk_bytes, example.chunk_bytes) << example.image_bytes;
  }
}

TEST(ValidateLayout, ValidateLayout_RejectsChunkSizeThatIsNotMultipleOf4096) {
  for (const uint64_t chunk_bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{4097}, UINT64_MAX}) {
    EXPECT_THAT(ValidateLayout(ChunkedLayout(1, chunk_bytes)).message(), HasSubstr("chunk size"));
  }
  EXPECT_TRUE(ValidateLayout(ChunkedLayout(1, 4096)).ok());
}

TEST(ValidateLayout, ValidateLayout_RejectsMoreChunksThanFitIn32Bits) {
  const uint64_t max = uint64_t{UINT32_MAX} * 4096;
  EXPECT_TRUE(ValidateLayout(ChunkedLayout(max, 4096)).ok());
  EXPECT_THAT(ValidateLayout(ChunkedLayout(max + 1, 4096)).message(), HasSubstr("2^32-1"));
}

TEST(ValidateLayout, ValidateLayout_RejectsUnassignedOffsetsAndSizes) {
  ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {1}), MakeTensor("b", DType::kU8, {1})});
  ASSERT_TRUE(AssignOffsets(layout).ok());
  ImageLayout moved = layout;
  moved.tensors[1].offset = 512;
  EXPECT_THAT(ValidateLayout(moved).message(),
              HasSubstr("tensor \"b\": the tensor is at offset 512 of the image instead of 256"));
  ImageLayout longer = layout;
  longer.image_bytes += 256;
  EXPECT_THAT(ValidateLayout(longer).message(),
              HasSubstr("lay out an image of 768 bytes: the tensors and their padding end at byte 512"));
}

TEST(SameImage, SameImage_ComparesTensorsAndIgnoresChunkSize) {
  const ImageLayout layout = ChunkedLayout(10'000, 4096);
  EXPECT_TRUE(SameImage(layout, ChunkedLayout(10'000, 8192)));
  EXPECT_FALSE(SameImage(layout, ChunkedLayout(10'001, 4096)));
  ImageLayout renamed = layout;
  renamed.tensors[0].name = "v";
  EXPECT_FALSE(SameImage(layout, renamed));
}

TEST(ImageLayout, Chunks_CoverImageWithShorterLastChunk) {
  const ImageLayout layout = ChunkedLayout(10'000, 4096);
  EXPECT_EQ(layout.image_bytes, 10'240u);
  ASSERT_EQ(layout.chunk_count(), 3u);
  EXPECT_EQ(layout.chunk(0), (ByteRange{0, 4096}));
  EXPECT_EQ(layout.chunk(1), (ByteRange{4096, 4096}));
  EXPECT_EQ(layout.chunk(2), (ByteRange{8192, 2048}));
}

TEST(ImageLayout, ImageOfWholeChunks_HasFullLastChunk) {
  const ImageLayout layout = ChunkedLayout(8192, 4096);
  ASSERT_EQ(layout.chunk_count(), 2u);
  EXPECT_EQ(layout.chunk(1), (ByteRange{4096, 4096}));
}

TEST(ImageLayout, ChunkOffset_IsExactPast4GiB) {
  ImageLayout layout = LayoutOf({MakeTensor("w", DType::kU8, {1024 * kGiB})});
  ASSERT_TRUE(AssignOffsets(layout).ok());
  ASSERT_EQ(layout.chunk_count(), 65'536u);
  EXPECT_EQ(layout.chunk(65'535), (ByteRange{1024 * kGiB - kMaxChunkBytes, kMaxChunkBytes}));
}

TEST(Padding, PaddingIn_ReturnsRangesThatNoTensorCovers) {
  const auto artifact = testing::MakeTestArtifact(1, {100, 256, 0, 4000});
  // 0..100, 256..512, 512..512, 512..4512; the image ends at 4608.
  ASSERT_EQ(artifact.layout.image_bytes, 4608u);
  EXPECT_THAT(PaddingIn(artifact.layout, {0, 4096}), ElementsAre(ByteRange{100, 156}));
  EXPECT_THAT(PaddingIn(artifact.layout, {4096, 512}), ElementsAre(ByteRange{4512, 96}));
  EXPECT_THAT(PaddingIn(artifact.layout, {150, 50}), ElementsAre(ByteRange{150, 50}));
  EXPECT_THAT(PaddingIn(artifact.layout, {256, 1000}), IsEmpty());
  EXPECT_THAT(PaddingIn(artifact.layout, {0, 0}), IsEmpty());
}

TEST(Padding, CheckPadding_FindsNonZeroByteAcrossSpans) {
  auto artifact = testing::MakeTestArtifact(1, {100, 300});
  const std::span<std::byte> image(artifact.image);
  const std::vector<std::span<std::byte>> spans = {image.first(130), image.subspan(130, 1),
                                                   image.subspan(131)};
  const ByteRange all{0, artifact.layout.image_bytes};
  EXPECT_TRUE(CheckPadding(artifact.layout, all, spans).ok());
  for (const size_t wrong : {size_t{100}, size_t{130}, size_t{255}, artifact.image.size() - 1}) {
    artifact.image[wrong] = std::byte{1};
    const absl::Status status = CheckPadding(artifact.layout, all, spans);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("byte ", wrong)));
    artifact.image[wrong] = std::byte{0};
  }
}

}  // namespace
}  // namespace tensorcast
