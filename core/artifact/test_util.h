// Digests for tests.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/artifact/digest.h"
#include "core/artifact/layout.h"

namespace tensorcast::testing {

// Both digests of every chunk of an image.
std::vector<ChunkDigests> DigestsOf(const ImageLayout& layout, std::span<const std::byte> image);

// Changes bytes but keeps their XXH3-128, as an adversary can: changes one word, and a few others to
// compensate. The changes are in the first 384 bytes. REQUIRES: at least 1088 bytes.
void ForgeKeepingXxh3(std::span<std::byte> bytes);

// Zero digests, one for each chunk of the layout, for manifests without an image.
std::vector<ChunkDigests> NoDigests(const ImageLayout& layout);

}  // namespace tensorcast::testing
