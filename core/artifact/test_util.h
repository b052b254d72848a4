// What tests need of digests.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/artifact/digest.h"
#include "core/artifact/layout.h"

namespace tensorcast::testing {

// Both digests of every chunk of an image.
std::vector<ChunkDigests> DigestsOf(const ImageLayout& layout, std::span<const std::byte> image);

// Writes other bytes that have the same XXH3-128, as an adversary can to deceive a receiver: chosen bytes,
// and a few words that make up for them. In the first block; no more than 384 bytes change. REQUIRES:
// at least 1088 bytes.
void ForgeKeepingXxh3(std::span<std::byte> bytes);

// For manifests of no image: zeros, as many as the layout asks for.
std::vector<ChunkDigests> NoDigests(const ImageLayout& layout);

}  // namespace tensorcast::testing
