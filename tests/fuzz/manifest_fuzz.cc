// The manifest's canonical bytes.
#include "absl/log/check.h"
#include "core/artifact/manifest.h"
#include "core/artifact/test_util.h"
#include "core/tensor/tensor.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  const absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(input);
  if (!manifest.ok()) {
    CHECK(absl::IsInvalidArgument(manifest.status())) << manifest.status();
    return;
  }
  const Manifest& decoded = **manifest;
  CHECK_OK(ValidateLayout(decoded.layout()));
  CHECK(IsArtifactId(decoded.id()));
  const auto again =
      Manifest::Create(decoded.layout(), decoded.digests(), decoded.metadata(), decoded.kind());
  CHECK(again.value()->bytes() == input) << "two encodings of one manifest: the artifact's id is ambiguous";
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const auto add = [&seeds](std::vector<Tensor> tensors, std::map<std::string, std::string> metadata,
                            ArtifactKind kind = ArtifactKind::kTensors) {
    ImageLayout layout{.tensors = std::move(tensors)};
    for (Tensor& tensor : layout.tensors) tensor.nbytes = TensorBytes(tensor.dtype, tensor.shape).value();
    CHECK_OK(AssignOffsets(layout));
    seeds.push_back(Manifest::Create(layout, testing::NoDigests(layout), metadata, kind).value()->bytes());
  };
  add({}, {});
  add({{.name = "w", .dtype = DType::kBF16, .shape = {2, 3}}, {.name = "s", .dtype = DType::kF32}},
      {{"format", "pt"}});
  add({{.name = "layers.0.weight", .dtype = DType::kF32, .shape = {64, 64}},
       {.name = "none", .dtype = DType::kU8, .shape = {0}}},
      {{"a", ""}, {"b", "\xc3\xa9"}});
  add({{.name = "index", .dtype = DType::kU8, .shape = {5}},
       {.name = "records", .dtype = DType::kU8, .shape = {300}}},
      {{"base", ArtifactId("base")}, {"target", ArtifactId("target")}}, ArtifactKind::kDifference);
  add({{.name = "a/b.json", .dtype = DType::kU8, .shape = {2}},
       {.name = "c", .dtype = DType::kU8, .shape = {0}}},
      {});
  seeds.push_back(seeds.back());  // as files, too
  constexpr size_t kKindAt = 7;
  seeds.back()[kKindAt] = static_cast<char>(ArtifactKind::kFiles);
  for (const ArtifactKind kind : {ArtifactKind::kFiles, ArtifactKind::kDifference}) {
    seeds.push_back(seeds.front());
    seeds.back()[kKindAt] = static_cast<char>(kind);
  }
  return seeds;
}

}  // namespace tensorcast::fuzz
