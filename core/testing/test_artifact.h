// Artifacts for tests: small images with bytes that depend on a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/memory/host_pool.h"

namespace tensorcast::testing {

struct TestArtifact {
  ImageLayout layout;
  std::vector<std::byte> image;
  std::shared_ptr<const Manifest> manifest;
};

// Tensors of these sizes in bytes (type U8), with gaps where they do not fill 256 bytes. Dies where that is
// not a valid layout. Another chunk size than the one that follows from the image makes this process accept
// any chunk size (AllowAnyChunkSizeForTests); 0: the size that follows from the image.
TestArtifact MakeTestArtifact(uint64_t seed, const std::vector<uint64_t>& tensor_bytes,
                              uint64_t chunk_bytes = 0);

// One tensor that fills `chunks` chunks. `chunk_bytes` as for MakeTestArtifact.
TestArtifact MakeChunkedArtifact(uint64_t seed, uint32_t chunks, uint64_t chunk_bytes = 4096);

// The bytes behind spans, one after another.
std::vector<std::byte> Gather(const std::vector<HostSpan>& spans);

}  // namespace tensorcast::testing
