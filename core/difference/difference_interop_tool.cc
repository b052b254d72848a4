// Writes a base, a target, and the difference between them as files, for decode_difference.py to read: every
// mode of a record, and elements of all widths.
#include <array>
#include <cstddef>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "core/artifact/manifest.h"
#include "core/artifact/test_util.h"
#include "core/difference/difference_artifact.h"
#include "core/difference/element_order.h"
#include "core/difference/test_util.h"

namespace tensorcast {
namespace {

constexpr uint64_t kChunkBytes = 65536;

void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(file.good()) << "cannot write " << path;
}

std::string_view Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

int Main(const std::string& folder) {
  AllowAnyChunkSizeForTests();
  const ImageLayout layout = testing::LayoutOfTensors({{DType::kBF16, 300'001},
                                                       {DType::kF32, 20'003},
                                                       {DType::kU8, 0},
                                                       {DType::kF8E4M3, 50'000},
                                                       {DType::kF4, 33'000},
                                                       {DType::kF64, 9000},
                                                       {DType::kC64, 9000},
                                                       {DType::kI16, 9000}},
                                                      kChunkBytes);
  const DifferenceGeometry geometry = GeometryOf(layout);
  std::mt19937_64 random(11);
  std::vector<std::byte> base(layout.image_bytes);
  for (std::byte& byte : base) byte = std::byte(random());
  std::vector<std::byte> target = base;
  // For each chunk in turn: the part of the elements that change, and the number of kinds of steps, so that
  // each mode is the shortest of some chunk. The last entry changes every element to any value.
  struct Change {
    double part;
    uint64_t steps;
  };
  constexpr std::array<Change, 6> kChanges = {{{0.02, 6}, {0, 1}, {0.85, 2}, {1, 6}, {0.001, 6}, {1, 0}}};
  for (const ElementRun& run : geometry.runs) {
    WithElementType(run.width, [&]<typename U>(U) {
      for (uint64_t at = run.offset; at < run.offset + run.bytes; at += sizeof(U)) {
        const Change& change = kChanges[at / kChunkBytes % kChanges.size()];
        if (std::uniform_real_distribution<double>()(random) >= change.part) continue;
        const bool any_value = change.steps == 0 || (change.steps == 6 && random() % 40 == 0);
        const U after = any_value ? static_cast<U>(random())
                                  : TakeStep<U>(LoadElement<U>(&base[at]),
                                                static_cast<uint8_t>(random() % change.steps + 1));
        StoreElement<U>(&target[at], after);
      }
    });
  }
  const auto encoded = testing::EncodeImage(geometry, base, target);
  CHECK(encoded.has_value());
  const auto manifest_of = [](const ImageLayout& of, const std::vector<std::byte>& image,
                              std::map<std::string, std::string> metadata, ArtifactKind kind) {
    return Manifest::Create(of, testing::DigestsOf(of, image), std::move(metadata), kind).value();
  };
  const auto base_manifest = manifest_of(layout, base, {}, ArtifactKind::kTensors);
  const auto target_manifest = manifest_of(layout, target, {}, ArtifactKind::kTensors);
  const std::vector<std::byte> image = testing::ImageOf(*encoded);
  const auto difference =
      manifest_of(encoded->layout, image, DifferenceMetadata({base_manifest->id(), target_manifest->id()}),
                  ArtifactKind::kDifference);
  WriteFile(folder + "/target.manifest", target_manifest->bytes());
  WriteFile(folder + "/difference.manifest", difference->bytes());
  WriteFile(folder + "/difference.image", Text(image));
  WriteFile(folder + "/base.image", Text(base));
  WriteFile(folder + "/target.image", Text(target));
  return 0;
}

}  // namespace
}  // namespace tensorcast

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: difference_interop_tool FOLDER\n";
    return 1;
  }
  return tensorcast::Main(argv[1]);
}
