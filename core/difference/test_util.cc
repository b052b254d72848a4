#include "core/difference/test_util.h"

#include <bit>
#include <cmath>
#include <map>
#include <random>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/device/element_changes.h"
#include "core/difference/change_lists.h"
#include "core/difference/chunk_encoder.h"
#include "core/difference/element_order.h"

namespace tensorcast::testing {
namespace {

constexpr float kDeviation = 0.02f;

// Calls change(element's bits) for a random part of the elements.
void ForSome(std::span<std::byte> bytes, double part, std::mt19937_64& random, auto&& change) {
  std::geometric_distribution<uint64_t> gap(part);
  for (uint64_t element = gap(random); element < bytes.size() / 2; element += 1 + gap(random)) {
    std::byte* const at = bytes.data() + element * 2;
    StoreElement<uint16_t>(at, change(LoadElement<uint16_t>(at)));
  }
}

}  // namespace

uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

void FillWeights(std::span<std::byte> bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> weight(0, kDeviation);
  for (size_t i = 0; i < bytes.size(); i += 2) {
    StoreElement<uint16_t>(bytes.data() + i, ToBf16(weight(random)));
  }
}

void StepByUlps(std::span<std::byte> bytes, double changed, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::discrete_distribution<int> distance({0, 85, 12, 3});
  ForSome(bytes, changed, random, [&](uint16_t bits) {
    const int step = random() % 2 == 0 ? distance(random) : -distance(random);
    return FromOrder<uint16_t>(static_cast<uint16_t>(ToOrder(bits) + step));
  });
}

void StepMasterWeights(std::span<std::byte> bytes, float learning_rate, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> step(0, learning_rate);
  std::uniform_real_distribution<float> rounded(-0.5f, 0.5f);
  for (size_t i = 0; i < bytes.size(); i += 2) {
    const auto bits = LoadElement<uint16_t>(bytes.data() + i);
    const float weight = FromBf16(bits);
    const float ulp = std::abs(FromBf16(static_cast<uint16_t>(bits + 1)) - weight);
    StoreElement<uint16_t>(bytes.data() + i, ToBf16(weight + rounded(random) * ulp + step(random)));
  }
}

StepStatistics CompareSteps(std::span<const std::byte> base, std::span<const std::byte> target) {
  CHECK_EQ(base.size(), target.size());
  StepStatistics statistics{.elements = base.size() / 2};
  std::map<uint16_t, uint64_t> steps;
  for (size_t i = 0; i < base.size(); i += 2) {
    const auto step =
        StepBetween<uint16_t>(LoadElement<uint16_t>(&base[i]), LoadElement<uint16_t>(&target[i]));
    if (step == 0) continue;
    ++statistics.changed;
    ++steps[step];
  }
  // The information of `count` events of a kind that is `count` of `all`.
  const auto bits = [](uint64_t count, uint64_t all) {
    if (count == 0) return 0.0;
    return static_cast<double>(count) * std::log2(static_cast<double>(all) / static_cast<double>(count));
  };
  double sum = bits(statistics.changed, statistics.elements) +
               bits(statistics.elements - statistics.changed, statistics.elements);
  for (const auto& [step, count] : steps) sum += bits(count, statistics.changed);
  statistics.bound_bytes = sum / 8;
  return statistics;
}

ImageLayout LayoutOfTensors(const std::vector<TensorSpec>& tensors, uint64_t chunk_bytes) {
  ImageLayout layout;
  for (const TensorSpec& spec : tensors) {
    const std::string name = absl::StrCat("t", layout.tensors.size());
    layout.tensors.push_back({.name = name,
                              .dtype = spec.dtype,
                              .shape = {spec.elements},
                              .nbytes = TensorBytes(spec.dtype, {spec.elements}).value()});
  }
  CHECK_OK(AssignOffsets(layout));
  if (chunk_bytes != 0) layout.chunk_bytes = chunk_bytes;
  return layout;
}

std::optional<EncodedDifference> EncodeImage(const DifferenceGeometry& geometry,
                                             std::span<const std::byte> base,
                                             std::span<const std::byte> target) {
  DifferenceEncoder encoder(geometry);
  ChunkEncoder chunks(encoder);
  for (uint32_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) {
    const ByteRange range = geometry.chunk(chunk);
    chunks.Encode(chunk, base.subspan(range.offset, range.bytes), target.subspan(range.offset, range.bytes));
  }
  return encoder.Finish();
}

std::vector<std::string> RecordsOf(const EncodedDifference& difference) {
  std::vector<std::string> records;
  for (const EncodedDifference::Record& record : difference.records) {
    std::string& joined = records.emplace_back();
    for (const std::span<const std::byte> piece : record) {
      joined.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
  }
  return records;
}

absl::Status ApplyLists(DecoderPath path, uint32_t chunk, size_t room_bytes, std::span<std::byte> bytes) {
  ChangeLists lists;
  TC_RETURN_IF_ERROR(lists.Begin(path, chunk));
  std::vector<std::byte> room(room_bytes);
  std::span<std::byte> left = room;
  while (!lists.done()) {
    TC_ASSIGN_OR_RETURN(const ChangeLists::Part part, lists.Next(left));
    if (part.lists.empty()) {
      CHECK_LT(left.size(), room.size()) << "an empty room is too small";
      left = room;
      continue;
    }
    CHECK_LE(part.bytes, left.size());
    left = left.subspan(part.bytes);
    for (const ChangeList& list : part.lists) {
      CHECK_LE(list.offset + uint64_t{list.elements} * list.width, bytes.size());
      ChangeElements({.begin = &bytes[list.offset],
                      .places = list.places.data(),
                      .operands = list.operands,
                      .count = static_cast<uint32_t>(list.places.size()),
                      .elements = list.elements,
                      .width = list.width,
                      .steps = list.steps},
                     /*lane=*/0, /*lanes=*/1);
    }
  }
  return absl::OkStatus();
}

std::vector<std::byte> ImageOf(const EncodedDifference& difference) {
  std::vector<std::byte> image(difference.layout.image_bytes);
  difference.CopyImage({0, image.size()}, image.data());
  return image;
}

}  // namespace tensorcast::testing
