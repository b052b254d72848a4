// Encoding and rebuilding: the target comes out, whatever changed, however the memory is cut.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "core/artifact/digest.h"
#include "core/difference/change_lists.h"
#include "core/difference/chunk_encoder.h"
#include "core/difference/chunk_rebuilder.h"
#include "core/difference/difference_artifact.h"
#include "core/difference/difference_encoder.h"
#include "core/difference/element_order.h"
#include "core/difference/record.h"
#include "core/difference/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::codec_test {
namespace {

using ::tensorcast::testing::EncodeImage;
using ::tensorcast::testing::ImageOf;
using ::tensorcast::testing::LayoutOfTensors;
using ::tensorcast::testing::RecordsOf;

using Image = std::vector<std::byte>;

constexpr uint64_t kSmallChunk = 8192;

Image RandomImage(const DifferenceGeometry& geometry, std::mt19937_64& random) {
  Image image(geometry.image_bytes);
  for (size_t i = 0; i < image.size(); i += 8) StoreElement<uint64_t>(&image[i], random());
  return image;
}

// Changes elements of all widths, at random: mostly by small steps, some to any value.
Image Changed(const DifferenceGeometry& geometry, const Image& base, double part, std::mt19937_64& random) {
  Image target = base;
  std::bernoulli_distribution change(part);
  for (const ElementRun& run : geometry.runs) {
    WithElementType(run.width, [&]<typename U>(U) {
      for (uint64_t at = run.offset; at < run.offset + run.bytes; at += sizeof(U)) {
        if (!change(random)) continue;
        const U bits = LoadElement<U>(&target[at]);
        const U other = random() % 50 == 0 ? static_cast<U>(random())
                                           : TakeStep<U>(bits, static_cast<uint8_t>(random() % 5 + 1));
        StoreElement<U>(&target[at], other);
      }
    });
  }
  return target;
}

// A difference that stays open as long as this lives.
class OpenDifference {
 public:
  OpenDifference(EncodedDifference encoded, const DifferenceGeometry& geometry)
      : encoded_(std::move(encoded)), image_(ImageOf(encoded_)) {
    const std::span<std::byte> piece = image_;
    auto decoder = DifferenceDecoder::Open(encoded_.layout, {&piece, 1}, geometry);
    EXPECT_TRUE(decoder.ok()) << decoder.status();
    if (decoder.ok()) decoder_.emplace(*std::move(decoder));
  }
  const DifferenceDecoder* operator->() const { return &*decoder_; }
  const DifferenceDecoder* get() const { return &*decoder_; }
  const EncodedDifference& encoded() const { return encoded_; }
  Image& image() { return image_; }

 private:
  EncodedDifference encoded_;
  Image image_;
  std::optional<DifferenceDecoder> decoder_;
};

std::unique_ptr<OpenDifference> Between(const DifferenceGeometry& geometry, const Image& base,
                                        const Image& target) {
  auto encoded = EncodeImage(geometry, base, target);
  if (!encoded.has_value()) return nullptr;
  return std::make_unique<OpenDifference>(*std::move(encoded), geometry);
}

// The target's image, with the chunks that no record makes taken from `whole`.
Image Rebuilt(DecoderPath path, const Image& base, const Image& whole) {
  const DifferenceGeometry& geometry = path.front()->geometry();
  Image target(base.size(), std::byte{0xEE});
  ChunkRebuilder rebuilder;
  for (uint32_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) {
    const ByteRange range = geometry.chunk(chunk);
    const auto out = std::span(target).subspan(range.offset, range.bytes);
    if (ModeOf(path, chunk) == RecordMode::kWhole) {
      std::memcpy(out.data(), &whole[range.offset], range.bytes);
      continue;
    }
    DigestBuilder digest;
    const absl::Status status =
        rebuilder.Rebuild(path, chunk, std::span(base).subspan(range.offset, range.bytes), out, &digest);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(digest.Finish(), ComputeDigest(out)) << "chunk " << chunk;
    // As a GPU makes it, with little and with much room for lists.
    const auto there = std::span(base).subspan(range.offset, range.bytes);
    Image listed(there.begin(), there.end());
    const size_t room = chunk % 2 == 0 ? ChangeLists::kMinRoomBytes : size_t{1} << 20;
    const absl::Status applied = testing::ApplyLists(path, chunk, room, listed);
    EXPECT_TRUE(applied.ok()) << applied;
    EXPECT_TRUE(std::ranges::equal(listed, out)) << "chunk " << chunk;
  }
  return target;
}

DifferenceGeometry MixedGeometry(uint64_t elements) {
  return GeometryOf(LayoutOfTensors({{DType::kBF16, elements},
                                     {DType::kF32, elements / 2 + 1},
                                     {DType::kF8E4M3, elements + 3},
                                     {DType::kF64, elements / 4 + 5},
                                     {DType::kF4, elements * 2},
                                     {DType::kF16, elements + 1},
                                     {DType::kC64, elements / 4}},
                                    kSmallChunk));
}

TEST(DifferenceCodec, RandomImages_AreRebuilt) {
  std::mt19937_64 random(7);
  std::set<RecordMode> modes;
  for (const double part : {0.0, 0.00005, 0.001, 0.014, 0.09, 0.3, 0.6, 1.0}) {
    for (const uint64_t elements : {1, 100, 5000, 20'000}) {
      const DifferenceGeometry geometry = MixedGeometry(elements);
      const Image base = RandomImage(geometry, random);
      const Image target = Changed(geometry, base, part, random);
      const auto difference = Between(geometry, base, target);
      if (difference == nullptr) {
        EXPECT_GT(part, 0.1);
        continue;
      }
      const DifferenceDecoder* const path = difference->get();
      EXPECT_TRUE(Rebuilt({&path, 1}, base, target) == target) << part << ", " << elements;
      for (uint32_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) modes.insert(path->mode(chunk));
    }
  }
  EXPECT_THAT(modes, ::testing::IsSupersetOf({RecordMode::kSame, RecordMode::kSparse, RecordMode::kDense}));
}

// Each dtype alone, so that its width is the width of all.
TEST(DifferenceCodec, EveryDtype_IsRebuiltFromFewBytes) {
  std::mt19937_64 random(8);
  for (const DTypeInfo& info : AllDTypes()) {
    const DifferenceGeometry geometry = GeometryOf(LayoutOfTensors({{info.dtype, 65'536}}, kSmallChunk));
    const Image base = RandomImage(geometry, random);
    const Image target = Changed(geometry, base, 0.01, random);
    const auto difference = Between(geometry, base, target);
    ASSERT_NE(difference, nullptr) << info.name;
    const DifferenceDecoder* const path = difference->get();
    EXPECT_TRUE(Rebuilt({&path, 1}, base, target) == target) << info.name;
    EXPECT_LT(difference->encoded().records_bytes, geometry.image_bytes / 16) << info.name;
  }
}

struct Scene {
  DifferenceGeometry geometry = MixedGeometry(20'000);
  std::mt19937_64 random{9};
  Image base = RandomImage(geometry, random);
  Image target = Changed(geometry, base, 0.02, random);
  std::unique_ptr<OpenDifference> difference = Between(geometry, base, target);
  const DifferenceDecoder* path = difference->get();
};

TEST(DifferenceCodec, RebuildTwice_GivesSameBytes) {
  const Scene scene;
  EXPECT_TRUE(Rebuilt({&scene.path, 1}, scene.base, scene.target) == scene.target);
  EXPECT_TRUE(Rebuilt({&scene.path, 1}, scene.base, scene.target) == scene.target);
}

TEST(DifferenceCodec, WrongBase_GivesOtherDigests) {
  Scene scene;
  Image other = scene.base;
  other[5] ^= std::byte{1};
  const Image wrong = Rebuilt({&scene.path, 1}, other, scene.target);
  const ByteRange first = scene.geometry.chunk(0);
  EXPECT_FALSE(ComputeDigest(std::span(wrong).first(first.bytes)) ==
               ComputeDigest(std::span(scene.target).first(first.bytes)));
}

TEST(DifferenceCodec, EightVersions_FoldIntoOnePass) {
  Scene scene;
  std::vector<Image> versions = {scene.base};
  std::vector<std::unique_ptr<OpenDifference>> differences;
  std::vector<const DifferenceDecoder*> path;
  for (int version = 0; version < 8; ++version) {
    versions.push_back(Changed(scene.geometry, versions.back(), version == 3 ? 0.4 : 0.01, scene.random));
    differences.push_back(Between(scene.geometry, versions[version], versions[version + 1]));
    ASSERT_NE(differences.back(), nullptr);
    path.push_back(differences.back()->get());
  }
  EXPECT_TRUE(Rebuilt(path, versions.front(), versions.back()) == versions.back());
}

TEST(DifferenceCodec, PathOfTwoGeometries_IsRejected) {
  Scene scene;
  const DifferenceGeometry other = GeometryOf(LayoutOfTensors({{DType::kU8, 100}}, kSmallChunk));
  const Image image(other.image_bytes);
  const auto unchanged = Between(other, image, image);
  ASSERT_NE(unchanged, nullptr);
  const std::array<const DifferenceDecoder*, 2> path = {scene.path, unchanged->get()};
  const ByteRange range = scene.geometry.chunk(1);
  Image target(range.bytes);
  const absl::Status status = ChunkRebuilder().Rebuild(
      path, 1, std::span(scene.base).subspan(range.offset, range.bytes), target, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("for images that differ in size"));
}

std::vector<std::span<std::byte>> Cut(std::span<std::byte> bytes, const std::vector<size_t>& sizes) {
  std::vector<std::span<std::byte>> pieces;
  for (size_t i = 0; !bytes.empty(); ++i) {
    pieces.push_back(bytes.first(std::min(sizes[i % sizes.size()], bytes.size())));
    bytes = bytes.subspan(pieces.back().size());
  }
  return pieces;
}

TEST(DifferenceCodec, MemoryInPieces_GivesSameDifferenceAndTarget) {
  Scene scene;
  DifferenceEncoder encoder(scene.geometry);
  ChunkEncoder chunks(encoder);
  const auto range = [&](Image& image, uint32_t chunk) {
    const ByteRange bytes = scene.geometry.chunk(chunk);
    return std::span(image).subspan(bytes.offset, bytes.bytes);
  };
  for (uint32_t chunk = 0; chunk < scene.geometry.chunk_count(); ++chunk) {
    chunks.Encode(chunk, Cut(range(scene.base, chunk), {256, 2048}), Cut(range(scene.target, chunk), {4096}));
  }
  const auto encoded = encoder.Finish();
  ASSERT_TRUE(encoded.has_value());
  EXPECT_EQ(RecordsOf(*encoded), RecordsOf(scene.difference->encoded()));

  const auto image_pieces = Cut(scene.difference->image(), {1000, 77});
  const auto decoder = DifferenceDecoder::Open(encoded->layout, image_pieces, scene.geometry);
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  const DifferenceDecoder* const path = &*decoder;
  Image rebuilt(scene.base.size());
  ChunkRebuilder rebuilder;
  for (uint32_t chunk = 0; chunk < scene.geometry.chunk_count(); ++chunk) {
    ASSERT_TRUE(rebuilder
                    .Rebuild({&path, 1}, chunk, Cut(range(scene.base, chunk), {512, 4096}),
                             Cut(range(rebuilt, chunk), {2048, 256}), nullptr)
                    .ok());
  }
  EXPECT_TRUE(rebuilt == scene.target);
}

TEST(DifferenceCodec, StepsOfOneChunk_GiveSameRecord) {
  Scene scene;
  DifferenceEncoder encoder(scene.geometry);
  ChunkEncoder chunks(encoder);
  for (uint32_t chunk = 0; chunk < scene.geometry.chunk_count(); ++chunk) {
    const ByteRange range = scene.geometry.chunk(chunk);
    chunks.Start(chunk);
    for (uint64_t at = 0; at < range.bytes; at += 768) {
      const uint64_t bytes = std::min<uint64_t>(768, range.bytes - at);
      chunks.Append(std::span(scene.base).subspan(range.offset + at, bytes),
                    std::span(scene.target).subspan(range.offset + at, bytes));
    }
    chunks.Finish();
  }
  EXPECT_EQ(RecordsOf(*encoder.Finish()), RecordsOf(scene.difference->encoded()));
}

// Gives memory in small pieces, until `left_bytes` are used up.
class ScantMemory final : public RecordMemory {
 public:
  explicit ScantMemory(uint64_t left_bytes) : left_bytes_(left_bytes) {}

  absl::StatusOr<Pieces> Add(uint64_t min_bytes) override {
    if (min_bytes > left_bytes_) return absl::ResourceExhaustedError("no memory is left");
    left_bytes_ -= min_bytes;
    memory_.push_back(std::make_unique<Image>(min_bytes));
    return Cut(*memory_.back(), {13, 700});
  }

 private:
  uint64_t left_bytes_;
  std::vector<std::unique_ptr<Image>> memory_;
};

TEST(DifferenceCodec, RecordMemoryInPieces_GivesSameDifference) {
  Scene scene;
  DifferenceEncoder encoder(scene.geometry, std::make_shared<ScantMemory>(scene.base.size()));
  ChunkEncoder chunks(encoder);
  for (uint32_t chunk = 0; chunk < scene.geometry.chunk_count(); ++chunk) {
    const ByteRange range = scene.geometry.chunk(chunk);
    chunks.Encode(chunk, std::span(scene.base).subspan(range.offset, range.bytes),
                  std::span(scene.target).subspan(range.offset, range.bytes));
  }
  const auto encoded = encoder.Finish();
  ASSERT_TRUE(encoded.has_value());
  EXPECT_EQ(RecordsOf(*encoded), RecordsOf(scene.difference->encoded()));
  EXPECT_TRUE(ImageOf(*encoded) == scene.difference->image());
}

TEST(DifferenceCodec, NoMemoryForRecords_GivesNoDifference) {
  Scene scene;
  DifferenceEncoder encoder(scene.geometry,
                            std::make_shared<ScantMemory>(scene.difference->encoded().records_bytes / 2));
  ChunkEncoder chunks(encoder);
  for (uint32_t chunk = 0; chunk < scene.geometry.chunk_count() && !encoder.GivenUp(); ++chunk) {
    const ByteRange range = scene.geometry.chunk(chunk);
    chunks.Encode(chunk, std::span(scene.base).subspan(range.offset, range.bytes),
                  std::span(scene.target).subspan(range.offset, range.bytes));
  }
  EXPECT_TRUE(encoder.GivenUp());
  EXPECT_EQ(encoder.memory_status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(encoder.Finish().has_value());
}

TEST(DifferenceCodec, ThreadsShareAnEncoder_GiveSameDifference) {
  const Scene scene;
  DifferenceEncoder encoder(scene.geometry);
  std::atomic<uint32_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      ChunkEncoder chunks(encoder);
      for (uint32_t chunk = next++; chunk < scene.geometry.chunk_count(); chunk = next++) {
        const ByteRange range = scene.geometry.chunk(chunk);
        chunks.Encode(chunk, std::span(scene.base).subspan(range.offset, range.bytes),
                      std::span(scene.target).subspan(range.offset, range.bytes));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(RecordsOf(*encoder.Finish()), RecordsOf(scene.difference->encoded()));
}

TEST(DifferenceCodec, CopyImage_GivesEveryRange) {
  Scene scene;
  const EncodedDifference& encoded = scene.difference->encoded();
  for (uint64_t offset = 0; offset < encoded.layout.image_bytes; offset += 61) {
    const uint64_t bytes = std::min<uint64_t>(offset % 997, encoded.layout.image_bytes - offset);
    Image part(bytes);
    encoded.CopyImage({offset, bytes}, part.data());
    ASSERT_TRUE(std::ranges::equal(part, std::span(scene.difference->image()).subspan(offset, bytes)))
        << offset;
  }
  EXPECT_EQ(encoded.layout, DifferenceLayout(encoded.index.size(), encoded.records_bytes));
}

// Elements on both sides of a block's end, in a room for all of them.
TEST(ChangeLists, ChunkOfManyBlocks_IsListedInBlocks) {
  const DifferenceGeometry geometry = GeometryOf(LayoutOfTensors({{DType::kU8, 300'000}}));
  const Image base(geometry.image_bytes);
  Image target = base;
  for (const size_t at : {0, 65'535, 65'536, 131'071, 131'072, 299'999}) target[at] = std::byte{1};
  target[200'000] = std::byte{1};
  target[200'001] = std::byte{0xff};  // the only step of a byte that is escaped
  const auto difference = Between(geometry, base, target);
  ASSERT_NE(difference, nullptr);
  const DifferenceDecoder* const path = difference->get();
  ChangeLists lists;
  ASSERT_TRUE(lists.Begin({&path, 1}, 0).ok());
  std::vector<std::byte> room(4096);
  const auto part = lists.Next(room);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_TRUE(lists.done());
  // Five blocks, one of them with two lists.
  EXPECT_THAT(part->lists, ::testing::SizeIs(6));
  for (const ChangeList& list : part->lists) EXPECT_LE(list.elements, ChangeLists::kBlockElements);
  EXPECT_LE(part->bytes, room.size());
  EXPECT_TRUE(Rebuilt({&path, 1}, base, target) == target);
}

TEST(ChangeLists, UnchangedOrWholeChunk_HasNoLists) {
  const DifferenceGeometry geometry = GeometryOf(LayoutOfTensors({{DType::kBF16, kMinChunkBytes * 2}}));
  Image base(geometry.image_bytes);
  testing::FillWeights(base, 1);
  Image target = base;
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < kMinChunkBytes; ++i) target[kMinChunkBytes + i] = std::byte(random());
  const auto difference = Between(geometry, base, target);
  ASSERT_NE(difference, nullptr);
  const DifferenceDecoder* const path = difference->get();
  ChangeLists lists;
  ASSERT_TRUE(lists.Begin({&path, 1}, 0).ok());
  EXPECT_TRUE(lists.done());
  EXPECT_EQ(lists.Begin({&path, 1}, 1).code(), absl::StatusCode::kFailedPrecondition);
}

// Where elements of base and target differ, as VisitChanges tells it.
std::vector<std::pair<uint32_t, uint32_t>> TrueChanges(const DifferenceGeometry& geometry, uint32_t chunk,
                                                       const Image& base, const Image& target) {
  std::vector<std::pair<uint32_t, uint32_t>> changes;
  const ByteRange range = geometry.chunk(chunk);
  for (const ElementRun& run : geometry.RunsOf(chunk)) {
    for (uint64_t at = run.offset; at < run.offset + run.bytes; at += run.width) {
      if (std::memcmp(&base[range.offset + at], &target[range.offset + at], run.width) != 0) {
        changes.emplace_back(at, run.width);
      }
    }
  }
  return changes;
}

std::vector<std::pair<uint32_t, uint32_t>> VisitedChanges(DecoderPath path, uint32_t chunk) {
  std::vector<std::pair<uint32_t, uint32_t>> changes;
  ChunkRebuilder rebuilder;
  const absl::Status status = rebuilder.VisitChanges(path, chunk, [&](const ChangedElements& elements) {
    for (const uint32_t offset : elements.offsets) changes.emplace_back(offset, elements.width);
  });
  EXPECT_TRUE(status.ok()) << status;
  return changes;
}

TEST(DifferenceChanges, OneDifference_VisitsExactlyWhatChanged) {
  for (const double part : {0.0001, 0.02, 0.4}) {
    Scene scene;
    scene.target = Changed(scene.geometry, scene.base, part, scene.random);
    scene.difference = Between(scene.geometry, scene.base, scene.target);
    ASSERT_NE(scene.difference, nullptr);
    scene.path = scene.difference->get();
    for (uint32_t chunk = 0; chunk < scene.geometry.chunk_count(); ++chunk) {
      if (scene.path->mode(chunk) == RecordMode::kWhole) continue;
      EXPECT_EQ(VisitedChanges({&scene.path, 1}, chunk),
                TrueChanges(scene.geometry, chunk, scene.base, scene.target));
    }
  }
}

// Absolute values of the target at the visited places turn the base into the target, and doing it again, or
// on half of it, is harmless.
TEST(DifferenceChanges, TwoDifferences_ValuesWrittenTwiceAreHarmless) {
  Scene scene;
  const Image newest = Changed(scene.geometry, scene.target, 0.02, scene.random);
  const auto second = Between(scene.geometry, scene.target, newest);
  ASSERT_NE(second, nullptr);
  const std::array<const DifferenceDecoder*, 2> path = {scene.path, second->get()};
  Image in_place = scene.base;
  for (int time = 0; time < 2; ++time) {
    for (uint32_t chunk = 0; chunk < scene.geometry.chunk_count(); ++chunk) {
      const uint64_t begin = scene.geometry.chunk(chunk).offset;
      const auto changes = VisitedChanges(path, chunk);
      EXPECT_TRUE(std::ranges::is_sorted(changes));
      for (const auto& [offset, width] : changes) {
        std::memcpy(&in_place[begin + offset], &newest[begin + offset], width);
      }
    }
    EXPECT_TRUE(in_place == newest);
  }
}

DifferenceGeometry Weights(uint64_t bytes) {
  return GeometryOf(LayoutOfTensors({{DType::kBF16, bytes / 2}}));
}

TEST(DifferenceSize, UnchangedChunk_IsSame) {
  const DifferenceGeometry geometry = Weights(kMinChunkBytes * 2);
  Image base(geometry.image_bytes);
  testing::FillWeights(base, 1);
  Image target = base;
  target[kMinChunkBytes] ^= std::byte{1};
  const auto difference = Between(geometry, base, target);
  ASSERT_NE(difference, nullptr);
  EXPECT_EQ((*difference)->mode(0), RecordMode::kSame);
  EXPECT_EQ((*difference)->record(0).bytes, 0u);
  EXPECT_EQ((*difference)->mode(1), RecordMode::kSparse);
  const DifferenceDecoder* const path = difference->get();
  EXPECT_EQ(ModeOf({&path, 1}, 0), RecordMode::kSame);
  EXPECT_TRUE(Rebuilt({&path, 1}, base, target) == target);
}

TEST(DifferenceSize, OtherBytes_ComeWholeAndCannotBeRebuilt) {
  const DifferenceGeometry geometry = Weights(kMinChunkBytes * 4);
  Image base(geometry.image_bytes);
  testing::FillWeights(base, 1);
  Image target = base;
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < kMinChunkBytes; ++i) target[kMinChunkBytes + i] = std::byte(random());
  const auto difference = Between(geometry, base, target);
  ASSERT_NE(difference, nullptr);
  EXPECT_EQ((*difference)->mode(1), RecordMode::kWhole);
  EXPECT_EQ(difference->encoded().records_bytes, 0u);
  const DifferenceDecoder* const path = difference->get();
  EXPECT_EQ(ModeOf({&path, 1}, 1), RecordMode::kWhole);
  Image out(kMinChunkBytes);
  ChunkRebuilder rebuilder;
  EXPECT_EQ(rebuilder.Rebuild({&path, 1}, 1, std::span(base).first(out.size()), out, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rebuilder.VisitChanges({&path, 1}, 1, [](const ChangedElements&) {}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(DifferenceSize, MoreThanHalfTheImage_MakesNoDifference) {
  const DifferenceGeometry geometry = GeometryOf(LayoutOfTensors({{DType::kF32, kMinChunkBytes}}));
  std::mt19937_64 random(1);
  const Image base = RandomImage(geometry, random);
  const Image target = RandomImage(geometry, random);
  DifferenceEncoder encoder(geometry);
  ChunkEncoder chunks(encoder);
  for (uint32_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) {
    EXPECT_EQ(encoder.GivenUp(), chunk > 2);
    const ByteRange range = geometry.chunk(chunk);
    chunks.Encode(chunk, std::span(base).subspan(range.offset, range.bytes),
                  std::span(target).subspan(range.offset, range.bytes));
  }
  EXPECT_FALSE(encoder.Finish().has_value());
}

// The size of the record of the image's one chunk in each mode, from what changed.
std::map<RecordMode, size_t> SizesOfModes(const Image& base, const Image& target) {
  std::vector<uint8_t> gaps;
  std::vector<uint8_t> bits(base.size() / 16);
  std::vector<uint8_t> steps;
  std::vector<uint8_t> plane(base.size() / 2);
  size_t next = 0;
  for (size_t element = 0; element < base.size() / 2; ++element) {
    const auto step = StepBetween<uint16_t>(LoadElement<uint16_t>(&base[element * 2]),
                                            LoadElement<uint16_t>(&target[element * 2]));
    if (step == 0) continue;
    EXPECT_LT(step, kEscapedStep);
    for (; element - next >= kLongGap; next += kLongGap) gaps.push_back(kLongGap);
    gaps.push_back(static_cast<uint8_t>(element - next));
    next = element + 1;
    bits[element / 8] |= static_cast<uint8_t>(1u << element % 8);
    steps.push_back(static_cast<uint8_t>(step));
    plane[element] = static_cast<uint8_t>(step);
  }
  const auto size = [&](RecordMode mode, std::span<const uint8_t> positions,
                        std::span<const uint8_t> mode_steps) {
    return RecordWriter()
        .Write({.mode = mode,
                .changed = static_cast<uint32_t>(steps.size()),
                .positions = positions,
                .steps = mode_steps,
                .values = {}})
        .size();
  };
  return {{RecordMode::kSparse, size(RecordMode::kSparse, gaps, steps)},
          {RecordMode::kBitmap, size(RecordMode::kBitmap, bits, steps)},
          {RecordMode::kDense, size(RecordMode::kDense, {}, plane)}};
}

TEST(DifferenceSize, EachRateOfChange_TakesTheShortestMode) {
  const DifferenceGeometry geometry = Weights(kMinChunkBytes);
  Image base(geometry.image_bytes);
  testing::FillWeights(base, 1);
  std::mt19937_64 random(4);
  std::set<RecordMode> taken;
  for (const double part : {0.001, 0.014, 0.09, 0.3, 0.5, 0.85, 1.0}) {
    std::bernoulli_distribution change(part);
    Image target = base;
    for (size_t at = 0; at < target.size(); at += 2) {
      if (!change(random)) continue;
      const auto step = static_cast<uint8_t>(random() % 2 + 1);
      StoreElement<uint16_t>(&target[at], TakeStep<uint16_t>(LoadElement<uint16_t>(&target[at]), step));
    }
    const auto difference = Between(geometry, base, target);
    ASSERT_NE(difference, nullptr) << part;
    const RecordMode mode = (*difference)->mode(0);
    taken.insert(mode);
    std::map<RecordMode, size_t> sizes = SizesOfModes(base, target);
    EXPECT_EQ((*difference)->record(0).bytes, sizes[mode]);
    // Below one element in 16 only sparse is tried, which is at most a tenth longer than the others there.
    const double allowed = part < 1.0 / 16 ? 1.1 : 1.0;
    for (const auto& [other, size] : sizes) {
      EXPECT_LE(static_cast<double>(sizes[mode]), allowed * static_cast<double>(size))
          << part << ", " << RecordModeName(other);
    }
    const DifferenceDecoder* const path = difference->get();
    EXPECT_TRUE(Rebuilt({&path, 1}, base, target) == target) << part;
  }
  EXPECT_THAT(taken, ::testing::ElementsAre(RecordMode::kSparse, RecordMode::kBitmap, RecordMode::kDense));
}

// Zeroed tensors have steps that are too far to record, but values that compress to nothing.
TEST(DifferenceSize, ZeroedWeights_TakeFewBytes) {
  const DifferenceGeometry geometry = GeometryOf(LayoutOfTensors({{DType::kF32, kMinChunkBytes}}));
  std::mt19937_64 random(1);
  const Image base = RandomImage(geometry, random);
  const Image target(base.size());
  const auto difference = Between(geometry, base, target);
  ASSERT_NE(difference, nullptr);
  EXPECT_LT(difference->encoded().records_bytes, geometry.image_bytes / 1000);
  const DifferenceDecoder* const path = difference->get();
  EXPECT_TRUE(Rebuilt({&path, 1}, base, target) == target);
}

// The bars of the design, and that of the others' way on the same bytes is in the benchmark.
TEST(DifferenceSize, ChangedWeights_TakeLittleMoreThanTheirEntropy) {
  struct Bar {
    double changed;
    double of_image;
  };
  for (const Bar& bar : {Bar{0.014, 0.0090}, Bar{0.031, 0.0185}, Bar{0.09, 0.045}}) {
    const DifferenceGeometry geometry = Weights(uint64_t{4} << 20);
    Image base(geometry.image_bytes);
    testing::FillWeights(base, 1);
    Image target = base;
    testing::StepByUlps(target, bar.changed, 2);
    const auto encoded = EncodeImage(geometry, base, target);
    ASSERT_TRUE(encoded.has_value());
    const auto bytes = static_cast<double>(encoded->layout.image_bytes);
    EXPECT_LE(bytes, bar.of_image * static_cast<double>(geometry.image_bytes)) << bar.changed;
    EXPECT_LE(bytes, 1.3 * testing::CompareSteps(base, target).bound_bytes) << bar.changed;
  }
}

// What training in mixed precision does, with steps of many sizes where weights are near zero.
TEST(DifferenceSize, RoundedMasterWeights_TakeLittleMoreThanTheirEntropy) {
  const DifferenceGeometry geometry = Weights(uint64_t{4} << 20);
  Image base(geometry.image_bytes);
  testing::FillWeights(base, 1);
  Image target = base;
  testing::StepMasterWeights(target, 2e-6f, 2);
  const testing::StepStatistics steps = testing::CompareSteps(base, target);
  EXPECT_GT(steps.changed_part(), 0.005);
  EXPECT_LT(steps.changed_part(), 0.1);
  const auto difference = Between(geometry, base, target);
  ASSERT_NE(difference, nullptr);
  EXPECT_LE(static_cast<double>(difference->encoded().layout.image_bytes), 1.3 * steps.bound_bytes);
  const DifferenceDecoder* const path = difference->get();
  EXPECT_TRUE(Rebuilt({&path, 1}, base, target) == target);
}

}  // namespace
}  // namespace tensorcast::codec_test
