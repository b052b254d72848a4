// A difference: its index and its records. The input is a length and the index, and behind it the records.
#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "base/byte_codec.h"
#include "core/difference/chunk_rebuilder.h"
#include "core/difference/difference_artifact.h"
#include "core/difference/difference_index.h"
#include "core/difference/test_util.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {
namespace {

constexpr uint64_t kChunkBytes = 4096;

const DifferenceGeometry& Geometry() {
  static const DifferenceGeometry geometry = GeometryOf(testing::LayoutOfTensors(
      {{DType::kBF16, 3000}, {DType::kF32, 700}, {DType::kU8, 1000}, {DType::kF64, 100}}, kChunkBytes));
  return geometry;
}

std::vector<std::byte> Weights(uint64_t seed) {
  std::vector<std::byte> image(Geometry().image_bytes);
  testing::FillWeights(image, seed);
  return image;
}

void CheckStatus(const absl::Status& status) {
  CHECK(status.ok() || absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)) << status;
}

// Only elements that are visited may differ from the base.
void CheckChunk(const DifferenceDecoder& decoder, uint32_t chunk, std::span<const std::byte> base) {
  const DifferenceDecoder* const path = &decoder;
  static ChunkRebuilder rebuilder;
  std::vector<std::byte> target(base.size());
  const absl::Status rebuilt = rebuilder.Rebuild({&path, 1}, chunk, base, target, nullptr);
  CheckStatus(rebuilt);
  std::vector<std::byte> patched(base.begin(), base.end());
  uint64_t next = 0;
  const absl::Status visited =
      rebuilder.VisitChanges({&path, 1}, chunk, [&](const ChangedElements& elements) {
        for (const uint32_t offset : elements.offsets) {
          CHECK_GE(offset, next);
          next = offset + elements.width;
          CHECK_LE(next, base.size());
          std::memcpy(&patched[offset], &target[offset], elements.width);
        }
      });
  CheckStatus(visited);
  std::vector<std::byte> listed(base.begin(), base.end());
  const absl::Status applied = testing::ApplyLists({&path, 1}, chunk, /*room_bytes=*/512, listed);
  CHECK_EQ(applied.code(), rebuilt.code()) << applied;
  if (!rebuilt.ok()) return;
  CHECK(listed == target) << "a GPU would make other bytes";
  CHECK_OK(visited);
  CHECK(patched == target) << "an element changed that was not visited";
  std::vector<std::byte> again(base.size());
  CHECK_OK(rebuilder.Rebuild({&path, 1}, chunk, base, again, nullptr));
  CHECK(again == target);
}

absl::Status CheckDifference(std::string_view index, std::string_view records) {
  const ImageLayout layout = DifferenceLayout(index.size(), records.size());
  std::vector<std::byte> image(layout.image_bytes);
  std::ranges::copy(std::as_bytes(std::span(index)), image.begin());
  std::ranges::copy(std::as_bytes(std::span(records)),
                    image.begin() + static_cast<ptrdiff_t>(layout.tensors[1].offset));
  const std::span<std::byte> piece = image;
  const auto decoder = DifferenceDecoder::Open(layout, {&piece, 1}, Geometry());
  if (!decoder.ok()) return decoder.status();
  static const std::vector<std::byte> base = Weights(1);
  for (uint32_t chunk = 0; chunk < Geometry().chunk_count(); ++chunk) {
    const ByteRange range = Geometry().chunk(chunk);
    CheckChunk(*decoder, chunk, std::span(base).subspan(range.offset, range.bytes));
  }
  return absl::OkStatus();
}

// An index of the first of these records that is right, and how many bytes those have, with the modes and as
// far as possible the sizes of `index`: a random one hardly ever gets as far as the records.
std::pair<std::string, size_t> RightIndex(std::string_view index, std::string_view records) {
  constexpr size_t kHeadBytes = 22;
  ByteReader entries(index.substr(std::min(kHeadBytes, index.size())));
  DifferenceIndex right;
  size_t left = records.size();
  for (uint32_t chunk = 0; chunk < Geometry().chunk_count(); ++chunk) {
    auto mode = static_cast<RecordMode>(entries.Get<uint8_t>() % 5);
    const size_t bytes = std::min<size_t>({entries.Get<uint32_t>(), left, kChunkBytes - 1});
    if (bytes == 0 && mode != RecordMode::kSame) mode = RecordMode::kWhole;
    const bool has_record = mode != RecordMode::kSame && mode != RecordMode::kWhole;
    right.modes.push_back(mode);
    right.record_bytes.push_back(has_record ? static_cast<uint32_t>(bytes) : 0);
    left -= right.record_bytes.back();
  }
  return {EncodeIndex(right, Geometry()), records.size() - left};
}

}  // namespace

void TestOneInput(std::string_view input) {
  ByteReader in(input);
  const std::string_view index = in.GetString<uint16_t>();
  const std::string_view records = in.GetBytes(in.remaining());
  if (!in.ok()) return;
  CheckStatus(CheckDifference(index, records));
  const auto [right, bytes] = RightIndex(index, records);
  CHECK_OK(CheckDifference(right, records.substr(0, bytes)));
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const std::vector<std::byte> base = Weights(1);
  for (const double changed : {0.0, 0.001, 0.02, 0.3, 0.9}) {
    std::vector<std::byte> target = base;
    if (changed > 0) testing::StepByUlps(target, changed, 2);
    const auto encoded = testing::EncodeImage(Geometry(), base, target);
    if (!encoded.has_value()) continue;
    ByteWriter out;
    out.PutString<uint16_t>(encoded->index);
    for (const std::string& record : testing::RecordsOf(*encoded)) out.Put(record);
    seeds.push_back(out.Take());
  }
  return seeds;
}

}  // namespace tensorcast::fuzz
