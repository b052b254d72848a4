#include "core/testing/test_artifact.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::testing {

TestArtifact MakeTestArtifact(uint64_t seed, const std::vector<uint64_t>& tensor_bytes,
                              uint64_t chunk_bytes) {
  TestArtifact artifact;
  artifact.layout.chunk_bytes = chunk_bytes;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    Tensor tensor;
    tensor.name = absl::StrCat("tensor.", i);
    tensor.dtype = DType::kU8;
    tensor.shape = {tensor_bytes[i]};
    tensor.nbytes = tensor_bytes[i];
    artifact.layout.tensors.push_back(std::move(tensor));
  }
  CHECK_OK(AssignOffsets(artifact.layout));
  artifact.image.resize(artifact.layout.image_bytes);
  std::mt19937_64 random(seed);
  for (const Tensor& tensor : artifact.layout.tensors) {
    std::generate_n(artifact.image.begin() + tensor.offset, tensor.nbytes,
                    [&random] { return static_cast<std::byte>(random()); });
  }
  std::vector<Digest> digests;
  for (uint32_t chunk = 0; chunk < artifact.layout.chunk_count(); ++chunk) {
    const ByteRange range = artifact.layout.chunk(chunk);
    digests.push_back(ComputeDigest(std::span(artifact.image).subspan(range.offset, range.bytes)));
  }
  auto manifest = Manifest::Create(artifact.layout, std::move(digests), {{"seed", absl::StrCat(seed)}});
  CHECK_OK(manifest.status());
  artifact.manifest = *std::move(manifest);
  return artifact;
}

TestArtifact MakeChunkedArtifact(uint64_t seed, uint32_t chunks, uint64_t chunk_bytes) {
  return MakeTestArtifact(seed, {chunks * chunk_bytes}, chunk_bytes);
}

std::vector<std::byte> Gather(const std::vector<HostSpan>& spans) {
  std::vector<std::byte> bytes;
  for (const HostSpan& span : spans) bytes.insert(bytes.end(), span.begin(), span.end());
  return bytes;
}

}  // namespace tensorcast::testing
