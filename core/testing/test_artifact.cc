#include "core/testing/test_artifact.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "core/artifact/test_util.h"

namespace tensorcast::testing {

TestArtifact MakeTestArtifact(uint64_t seed, const std::vector<uint64_t>& tensor_bytes,
                              uint64_t chunk_bytes) {
  TestArtifact artifact;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    Tensor tensor;
    tensor.name = absl::StrCat("tensor.", i);
    tensor.dtype = DType::kU8;
    tensor.shape = {tensor_bytes[i]};
    tensor.nbytes = tensor_bytes[i];
    artifact.layout.tensors.push_back(std::move(tensor));
  }
  CHECK_OK(AssignOffsets(artifact.layout));
  if (chunk_bytes != 0 && chunk_bytes != artifact.layout.chunk_bytes) {
    AllowAnyChunkSizeForTests();
    artifact.layout.chunk_bytes = chunk_bytes;
  }
  artifact.image.resize(artifact.layout.image_bytes);
  std::mt19937_64 random(seed);
  for (const Tensor& tensor : artifact.layout.tensors) {
    for (uint64_t done = 0; done < tensor.nbytes; done += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(artifact.image.data() + tensor.offset + done, &word,
                  std::min<uint64_t>(sizeof(word), tensor.nbytes - done));
    }
  }
  std::vector<ChunkDigests> digests = DigestsOf(artifact.layout, artifact.image);
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
