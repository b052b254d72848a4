// What tests need of manifests and digests. Manifests that builds before version 2 made are still read, and
// only they have chunks of less than a MiB, so that a small image has many; no such manifest is made outside
// of tests.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/artifact/digest.h"
#include "core/artifact/layout.h"

namespace tensorcast::testing {

// The canonical bytes of version 1; a chunk's BLAKE3 is not among them. `layout` is written as it is.
std::string EncodeVersion1Manifest(const ImageLayout& layout, const std::vector<ChunkDigests>& digests,
                                   const std::map<std::string, std::string>& metadata);

// Both digests of every chunk of an image.
std::vector<ChunkDigests> DigestsOf(const ImageLayout& layout, std::span<const std::byte> image);

// Writes other bytes that have the same XXH3-128, as an adversary can to deceive a receiver: chosen bytes,
// and a few words that make up for them. In the first block; no more than 384 bytes change. REQUIRES:
// at least 1088 bytes.
void ForgeKeepingXxh3(std::span<std::byte> bytes);

// For manifests of no image: zeros, as many as the layout asks for.
std::vector<ChunkDigests> NoDigests(const ImageLayout& layout);

}  // namespace tensorcast::testing
