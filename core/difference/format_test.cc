// The bytes of a difference: golden ones, each mode by hand, and damage.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "absl/strings/escaping.h"
#include "core/artifact/test_util.h"
#include "core/difference/changed_marks.h"
#include "core/difference/chunk_rebuilder.h"
#include "core/difference/difference_artifact.h"
#include "core/difference/difference_index.h"
#include "core/difference/element_order.h"
#include "core/difference/record.h"
#include "core/difference/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::difference_format_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Image = std::vector<std::byte>;

// The worked example of FORMAT.md.
DifferenceGeometry ExampleGeometry() {
  return GeometryOf(testing::LayoutOfTensors({{DType::kBF16, 4}, {DType::kF32, 1}}));
}

Image ExampleBase() {
  Image image(512);
  for (const size_t at : {0, 2, 4}) StoreElement<uint16_t>(&image[at], 0x3f80);  // 1
  StoreElement<uint16_t>(&image[6], 0xbf80);                                     // -1
  StoreElement<uint32_t>(&image[256], 0x3f800000);                               // 1
  return image;
}

Image ExampleTarget() {
  Image image = ExampleBase();
  StoreElement<uint16_t>(&image[2], 0x3f81);        // one step up
  StoreElement<uint16_t>(&image[6], 0xbf81);        // one step down
  StoreElement<uint32_t>(&image[256], 0x40000000);  // 2, which is 2^23 steps up
  return image;
}

constexpr std::string_view kIndexHex =
    "54434446"
    "0100"  // magic, version
    "0002000000000000"
    "0000100000000000"  // image size, chunk size
    "01"
    "26000000";  // chunk 0: sparse, 38 bytes
constexpr std::string_view kRecordHex =
    "03000000"  // changed elements
    "03000000"
    "03000000"
    "01017c"  // gaps
    "03000000"
    "03000000"
    "0201ff"  // steps
    "04000000"
    "04000000"
    "00000040";  // values

std::string Unhex(std::string_view hex) {
  std::string bytes;
  EXPECT_TRUE(absl::HexStringToBytes(hex, &bytes));
  return bytes;
}

// Makes an image of these parts, opens it and rebuilds all chunks.
absl::Status RebuildFrom(std::string_view index, std::string_view records, const DifferenceGeometry& geometry,
                         const Image& base, Image* target) {
  const ImageLayout layout = DifferenceLayout(index.size(), records.size());
  Image image(layout.image_bytes);
  std::ranges::copy(std::as_bytes(std::span(index)), image.begin());
  std::ranges::copy(std::as_bytes(std::span(records)),
                    image.begin() + static_cast<ptrdiff_t>(layout.tensors[1].offset));
  const std::span<std::byte> piece = image;
  const auto decoder = DifferenceDecoder::Open(layout, {&piece, 1}, geometry);
  if (!decoder.ok()) return decoder.status();
  const DifferenceDecoder* const path = &*decoder;
  target->assign(base.size(), std::byte{0});
  ChunkRebuilder rebuilder;
  for (uint32_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) {
    const ByteRange range = geometry.chunk(chunk);
    const absl::Status rebuilt =
        rebuilder.Rebuild({&path, 1}, chunk, std::span(base).subspan(range.offset, range.bytes),
                          std::span(*target).subspan(range.offset, range.bytes), nullptr);
    const absl::Status visited =
        rebuilder.VisitChanges({&path, 1}, chunk, [&](const ChangedElements& elements) {
          for (const uint32_t offset : elements.offsets) EXPECT_LE(offset + elements.width, range.bytes);
        });
    EXPECT_TRUE(!rebuilt.ok() || visited.ok()) << visited;
    const auto there = std::span(base).subspan(range.offset, range.bytes);
    Image listed(there.begin(), there.end());
    const absl::Status applied = testing::ApplyLists({&path, 1}, chunk, /*room_bytes=*/1024, listed);
    EXPECT_EQ(applied, rebuilt);
    if (!rebuilt.ok()) return rebuilt;
    EXPECT_TRUE(std::ranges::equal(listed, std::span(*target).subspan(range.offset, range.bytes)));
  }
  return absl::OkStatus();
}

TEST(DifferenceFormat, Example_EncodesToGoldenBytes) {
  const auto encoded = testing::EncodeImage(ExampleGeometry(), ExampleBase(), ExampleTarget());
  ASSERT_TRUE(encoded.has_value());
  EXPECT_EQ(absl::BytesToHexString(encoded->index), kIndexHex);
  const std::vector<std::string> records = testing::RecordsOf(*encoded);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(absl::BytesToHexString(records[0]), kRecordHex);
}

TEST(DifferenceFormat, GoldenBytes_RebuildTheExample) {
  Image target;
  const absl::Status status =
      RebuildFrom(Unhex(kIndexHex), Unhex(kRecordHex), ExampleGeometry(), ExampleBase(), &target);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(target == ExampleTarget());
}

TEST(DifferenceFormat, Image_IsTwoTensorsOfBytes) {
  const ImageLayout layout = DifferenceLayout(27, 38);
  EXPECT_EQ(layout.image_bytes, 512u);
  EXPECT_EQ(layout.tensors[1].offset, 256u);
  const DifferenceEnds ends{.base = ArtifactId("base"), .target = ArtifactId("target")};
  const auto manifest = Manifest::Create(layout, tensorcast::testing::NoDigests(layout),
                                         DifferenceMetadata(ends), ArtifactKind::kDifference);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto read = EndsOf(**manifest);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->base, ends.base);
  EXPECT_EQ(read->target, ends.target);
  const auto other = Manifest::Create(layout, tensorcast::testing::NoDigests(layout), {});
  EXPECT_EQ(EndsOf(**other).status().code(), absl::StatusCode::kInvalidArgument);
}

// Records by hand, of chunks of one width.
constexpr uint64_t kElements = 4096;

DifferenceGeometry PlainGeometry(DType dtype = DType::kBF16) {
  return GeometryOf(testing::LayoutOfTensors({{dtype, kElements}}));
}

struct Record {
  RecordMode mode = RecordMode::kSparse;
  uint32_t changed = 0;
  std::vector<uint8_t> positions;
  std::vector<uint8_t> steps;
  std::vector<uint8_t> values;

  std::string Bytes() const {
    return RecordWriter().Write(
        {.mode = mode, .changed = changed, .positions = positions, .steps = steps, .values = values});
  }
};

absl::Status RebuildFrom(RecordMode mode, std::string_view record, const DifferenceGeometry& geometry,
                         const Image& base, Image* target) {
  const std::string index =
      EncodeIndex({.modes = {mode}, .record_bytes = {static_cast<uint32_t>(record.size())}}, geometry);
  return RebuildFrom(index, record, geometry, base, target);
}

// Elements 2, 300 and 4095 change by 1, -1 and to 0x1234, said in each mode.
std::vector<Record> InEachMode() {
  Record sparse{.mode = RecordMode::kSparse,
                .changed = 3,
                .positions = {2, 255, 42},
                .steps = {2, 1, kEscapedStep},
                .values = {0x34, 0x12}};
  sparse.positions.insert(sparse.positions.end(), 14, kLongGap);
  sparse.positions.push_back(4094 - 300 - 14 * kLongGap);
  Record bitmap = sparse;
  bitmap.mode = RecordMode::kBitmap;
  bitmap.positions.assign(kElements / 8, 0);
  bitmap.positions[0] = 1 << 2;
  bitmap.positions[300 / 8] = 1 << 300 % 8;
  bitmap.positions[4095 / 8] = 1 << 7;
  Record dense = sparse;
  dense.mode = RecordMode::kDense;
  dense.positions.clear();
  dense.steps.assign(kElements, 0);
  dense.steps[2] = 2;
  dense.steps[300] = 1;
  dense.steps[4095] = kEscapedStep;
  return {sparse, bitmap, dense};
}

TEST(DifferenceRecord, EachMode_ChangesTheSameElements) {
  Image base(kElements * 2);
  testing::FillWeights(base, 3);
  Image expected = base;
  const auto step = [&](size_t element, uint8_t by) {
    StoreElement<uint16_t>(&expected[element * 2],
                           TakeStep<uint16_t>(LoadElement<uint16_t>(&base[element * 2]), by));
  };
  step(2, 2);
  step(300, 1);
  StoreElement<uint16_t>(&expected[4095 * 2], 0x1234);
  for (const Record& record : InEachMode()) {
    Image target;
    const absl::Status status = RebuildFrom(record.mode, record.Bytes(), PlainGeometry(), base, &target);
    ASSERT_TRUE(status.ok()) << RecordModeName(record.mode) << ": " << status;
    EXPECT_TRUE(target == expected) << RecordModeName(record.mode);
  }
}

void ExpectDamaged(const Record& record, std::string_view reason) {
  const Image base(kElements * 2);
  Image target;
  const absl::Status status = RebuildFrom(record.mode, record.Bytes(), PlainGeometry(), base, &target);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << reason;
  EXPECT_THAT(status.message(), HasSubstr(reason)) << RecordModeName(record.mode);
}

Record With(Record record, auto&& change) {
  change(record);
  return record;
}

TEST(DifferenceRecord, ImpossibleNumberOfElements_IsRejected) {
  for (const Record& record : InEachMode()) {
    ExpectDamaged(With(record, [](Record& r) { r.changed = 0; }), "number of changed elements");
    ExpectDamaged(With(record, [](Record& r) { r.changed = kElements + 1; }), "number of changed elements");
  }
  const std::vector<Record> records = InEachMode();
  ExpectDamaged(With(records[0], [](Record& r) { r.changed = 4; }), "impossible size");
  ExpectDamaged(With(records[0], [](Record& r) { r.changed = 4, r.steps.push_back(1); }), "number of gaps");
  ExpectDamaged(With(records[1], [](Record& r) { r.changed = 4, r.steps.push_back(1); }), "number of bits");
  ExpectDamaged(With(records[2], [](Record& r) { r.changed = 4; }), "number of steps");
}

TEST(DifferenceRecord, PositionsOutsideTheChunk_AreRejected) {
  const std::vector<Record> records = InEachMode();
  ExpectDamaged(With(records[0], [](Record& r) { ++r.positions.back(); }), "gaps reach past the chunk");
  ExpectDamaged(With(records[0], [](Record& r) { r.positions.back() = kLongGap; }), "number of gaps");
  ExpectDamaged(With(records[0], [](Record& r) { r.positions = {1, 1, 1, kLongGap}; }),
                "last gap has no end");
  ExpectDamaged(With(records[0], [](Record& r) { r.positions.assign(100, kLongGap); }), "impossible size");
  ExpectDamaged(With(records[1], [](Record& r) { r.positions.push_back(0); }), "impossible size");
}

TEST(DifferenceRecord, MissingOrSpareValues_AreRejected) {
  for (const Record& record : InEachMode()) {
    ExpectDamaged(With(record, [](Record& r) { r.values.pop_back(); }), "the number of values in a record");
    ExpectDamaged(With(record, [](Record& r) { r.values.clear(); }), "the number of values in a record");
    ExpectDamaged(With(record, [](Record& r) { r.values.push_back(0); }), "the number of values in a record");
    ExpectDamaged(With(record, [](Record& r) { r.values.assign(kElements * 2 + 1, 0); }), "impossible size");
  }
}

TEST(DifferenceRecord, WrongNumberOfSteps_IsRejected) {
  for (const Record& record : InEachMode()) {
    ExpectDamaged(With(record, [](Record& r) { r.steps.pop_back(); }), "impossible size");
    ExpectDamaged(With(record, [](Record& r) { r.steps.push_back(0); }), "impossible size");
  }
}

// What a stream announces is compared with the chunk before memory is taken.
TEST(DifferenceRecord, HugeStream_IsRejectedBeforeAllocating) {
  const Record sparse = InEachMode()[0];
  for (const size_t stream : {0, 1, 2}) {
    std::string bytes = sparse.Bytes();
    size_t at = 4;
    const std::array<size_t, 3> sizes = {sparse.positions.size(), sparse.steps.size(), sparse.values.size()};
    for (size_t i = 0; i < stream; ++i) at += 8 + sizes[i];
    bytes.replace(at, 4, "\xff\xff\xff\xff");
    Image target;
    EXPECT_THAT(RebuildFrom(sparse.mode, bytes, PlainGeometry(), Image(kElements * 2), &target).message(),
                HasSubstr("impossible size"));
    bytes.replace(at + 4, 4, "\xff\xff\xff\xff");
    EXPECT_THAT(RebuildFrom(sparse.mode, bytes, PlainGeometry(), Image(kElements * 2), &target).message(),
                HasSubstr("past the end of the record"));
  }
}

// The seams of a record: its head, raw and compressed streams, gaps, steps and values; and of the index.
TEST(DifferenceDamage, AnyByte_GivesAnErrorOrOtherBytesOrTheSame) {
  const DifferenceGeometry geometry = GeometryOf(
      testing::LayoutOfTensors({{DType::kBF16, 3000}, {DType::kF32, 1000}, {DType::kU8, 5000}}, 4096));
  Image base(geometry.image_bytes);
  testing::FillWeights(base, 5);
  Image truth = base;
  testing::StepByUlps(std::span(truth).first(6144), 0.02, 6);
  testing::StepByUlps(std::span(truth).subspan(6144), 0.2, 6);
  const auto encoded = testing::EncodeImage(geometry, base, truth);
  ASSERT_TRUE(encoded.has_value());
  std::string records;
  for (const std::string& record : testing::RecordsOf(*encoded)) records += record;
  const auto damage = [&](std::string& part, size_t at) {
    int errors = 0;
    const char before = part[at];
    for (const int change : {1, 0x80, 0xff, 0x7e}) {
      part[at] = static_cast<char>(before ^ change);
      Image target;
      const absl::Status status = RebuildFrom(encoded->index, records, geometry, base, &target);
      if (!status.ok()) {
        EXPECT_TRUE(status.code() == absl::StatusCode::kInvalidArgument ||
                    status.code() == absl::StatusCode::kFailedPrecondition)
            << status;
      }
      errors += !status.ok();
    }
    part[at] = before;
    return errors;
  };
  std::string& index = const_cast<std::string&>(encoded->index);
  for (size_t at = 0; at < index.size(); ++at) {
    EXPECT_GT(damage(index, at), 0) << "byte " << at << " of the index";
  }
  int errors = 0;
  for (size_t at = 0; at < records.size(); ++at) errors += damage(records, at);
  EXPECT_GT(errors, 0);
  Image target;
  EXPECT_TRUE(RebuildFrom(index, records, geometry, base, &target).ok());
  EXPECT_TRUE(target == truth);
}

TEST(DifferenceDamage, EveryTruncation_IsRejected) {
  const std::string index = Unhex(kIndexHex);
  const std::string record = Unhex(kRecordHex);
  Image target;
  for (size_t size = 0; size < index.size(); ++size) {
    EXPECT_FALSE(RebuildFrom(index.substr(0, size), record, ExampleGeometry(), ExampleBase(), &target).ok());
  }
  for (size_t size = 0; size < record.size(); ++size) {
    EXPECT_THAT(
        RebuildFrom(RecordMode::kSparse, record.substr(0, size), ExampleGeometry(), ExampleBase(), &target)
            .message(),
        HasSubstr(size == 0 ? "a record of 0 bytes"
                            : "; no action is needed, the whole chunk is used instead"));
  }
  EXPECT_THAT(
      RebuildFrom(RecordMode::kSparse, record + "x", ExampleGeometry(), ExampleBase(), &target).message(),
      HasSubstr("bytes follow the last stream"));
}

void ExpectIndexRejected(const std::string& index, std::string_view reason) {
  const auto decoded = DecodeIndex(index, ExampleGeometry(), Unhex(kRecordHex).size());
  ASSERT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument) << reason;
  EXPECT_THAT(decoded.status().message(), HasSubstr(reason));
}

TEST(DifferenceIndex, OtherFormatOrGeometry_IsRejected) {
  const auto patched = [](size_t at, std::string_view hex) {
    return Unhex(kIndexHex).replace(at, hex.size() / 2, Unhex(hex));
  };
  ExpectIndexRejected(patched(0, "55"), "the magic of another format");
  ExpectIndexRejected(patched(4, "0200"), "format 2, but this build knows only format 1");
  ExpectIndexRejected(patched(6, "0003"), "an image of 768 bytes");
  ExpectIndexRejected(patched(14, "00002000"), "in chunks of 2097152");
  ExpectIndexRejected(patched(22, "05"), "unknown mode");
  ExpectIndexRejected(patched(22, "00"), "mode same and a record of 38 bytes");
  ExpectIndexRejected(patched(22, "04"), "mode whole and a record of 38 bytes");
  ExpectIndexRejected(patched(23, "00"), "mode sparse and a record of 0 bytes");
  ExpectIndexRejected(patched(23, "27"), "lists 39 bytes of records, but the tensor of records has 38 bytes");
  ExpectIndexRejected(patched(23, "ffffffff"), "a record of 4294967295 bytes");
  ExpectIndexRejected(Unhex(kIndexHex) + '\0', "the index has 6 bytes for the entries of 1 chunks");
}

TEST(DifferenceDecoder, ImageShorterThanItsLayout_IsRejected) {
  Image image(256);
  const std::span<std::byte> piece = image;
  const auto decoder = DifferenceDecoder::Open(DifferenceLayout(27, 38), {&piece, 1}, ExampleGeometry());
  EXPECT_THAT(decoder.status().message(), HasSubstr(" bytes, but its layout needs "));
}

TEST(DifferenceDecoder, ChunkMemoryOfOtherSize_IsRejected) {
  const auto encoded = testing::EncodeImage(ExampleGeometry(), ExampleBase(), ExampleTarget());
  Image image = testing::ImageOf(*encoded);
  const std::span<std::byte> piece = image;
  const auto decoder = DifferenceDecoder::Open(encoded->layout, {&piece, 1}, ExampleGeometry());
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  const DifferenceDecoder* const path = &*decoder;
  const Image base = ExampleBase();
  Image target(256);
  EXPECT_THAT(ChunkRebuilder().Rebuild({&path, 1}, 0, base, target, nullptr).message(),
              HasSubstr("the base's memory has 512 bytes and the target's memory has 256 bytes"));
}

TEST(ElementRuns, Geometry_MergesWidthsAndCoversPadding) {
  const DifferenceGeometry geometry = GeometryOf(testing::LayoutOfTensors({{DType::kBF16, 3},
                                                                           {DType::kU8, 0},
                                                                           {DType::kF16, 1},
                                                                           {DType::kF32, 1},
                                                                           {DType::kF4, 2},
                                                                           {DType::kI64, 33}},
                                                                          4096));
  EXPECT_THAT(geometry.runs, ElementsAre(ElementRun{0, 512, 2}, ElementRun{512, 256, 4},
                                         ElementRun{768, 256, 1}, ElementRun{1024, 512, 8}));
  EXPECT_EQ(geometry.image_bytes, 1536u);
  EXPECT_TRUE(GeometryOf(ImageLayout{}).runs.empty());
}

TEST(ElementRuns, Chunk_HasItsPartsOfRuns) {
  const DifferenceGeometry geometry =
      GeometryOf(testing::LayoutOfTensors({{DType::kBF16, 3072}, {DType::kF32, 1024}}, 4096));
  EXPECT_EQ(geometry.chunk_count(), 3u);
  EXPECT_THAT(geometry.RunsOf(1), ElementsAre(ElementRun{0, 2048, 2}, ElementRun{2048, 2048, 4}));
  EXPECT_THAT(geometry.RunsOf(2), ElementsAre(ElementRun{0, 2048, 4}));
}

TEST(ElementOrder, NeighbouringFloats_AreOneStepApart) {
  std::vector<float> values = {
      -std::numeric_limits<float>::infinity(), -1e30f, -1, -1e-40f, -0.0f, 0.0f, 1e-40f, 1, 3e38f};
  for (size_t i = 1; i < values.size(); ++i) {
    EXPECT_LT(ToOrder(std::bit_cast<uint32_t>(values[i - 1])), ToOrder(std::bit_cast<uint32_t>(values[i])));
  }
  for (const float value : {-2.0f, -1e-40f, 0.5f, 1.0f}) {
    const auto bits = std::bit_cast<uint32_t>(value);
    EXPECT_EQ(TakeStep<uint32_t>(bits, 2), std::bit_cast<uint32_t>(std::nextafter(value, 10.0f)));
    EXPECT_EQ(TakeStep<uint32_t>(bits, 1), std::bit_cast<uint32_t>(std::nextafter(value, -10.0f)));
  }
}

TEST(ElementOrder, EveryByte_IsReachedFromEveryByte) {
  for (int from = 0; from < 256; ++from) {
    for (int to = 0; to < 256; ++to) {
      const uint8_t step = StepBetween<uint8_t>(static_cast<uint8_t>(from), static_cast<uint8_t>(to));
      ASSERT_EQ(step == 0, from == to);
      ASSERT_EQ(TakeStep<uint8_t>(static_cast<uint8_t>(from), step), to);
    }
  }
}

template <typename U>
void CompareWithOneStep(U bits) {
  for (const uint8_t step : {0, 1, 2, 3, 126, 127, 128, 253, 254}) {
    ASSERT_EQ(TakeOneStep<U>(bits, step), TakeStep<U>(bits, step)) << +bits << " by " << +step;
  }
}

TEST(ElementOrder, OneElementAlone_TakesTheSameStep) {
  std::mt19937_64 random(1);
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    CompareWithOneStep(static_cast<uint8_t>(bits));
    CompareWithOneStep(static_cast<uint16_t>(bits));
    CompareWithOneStep(static_cast<uint32_t>(random()));
    CompareWithOneStep(uint64_t{random()});
  }
}

TEST(ChangedMarks, ProcessorsExtensions_GiveThePortableMarks) {
  std::mt19937_64 random(3);
  for (const uint32_t width : {1, 2, 4, 8}) {
    for (const size_t bytes : {256, 512, 768, 4096, 4352}) {
      Image base(bytes);
      for (std::byte& byte : base) byte = std::byte(random());
      Image target = base;
      for (int i = 0; i < 40; ++i) target[random() % bytes] ^= std::byte(random());
      const size_t words = (bytes / width + kMarksPerWord - 1) / kMarksPerWord;
      std::vector<uint64_t> marks(words, ~uint64_t{0});
      std::vector<uint64_t> expected(words, ~uint64_t{0});
      MarkChanged(width, base.data(), target.data(), bytes, marks.data());
      MarkChangedPortable(width, base.data(), target.data(), bytes, expected.data());
      EXPECT_EQ(marks, expected) << width << ", " << bytes;
      for (size_t element = 0; element < bytes / width; ++element) {
        const bool differs = std::memcmp(&base[element * width], &target[element * width], width) != 0;
        ASSERT_EQ(marks[element / 64] >> element % 64 & 1, differs ? 1u : 0u);
      }
    }
  }
}

}  // namespace
}  // namespace tensorcast::difference_format_test
