// The bytes of an image that belong to no tensor. They are zero by definition; a first ingest checks that
// they are, since its digests make whatever is there part of the artifact.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/artifact/layout.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// The gaps between tensors, and behind the last, that lie in `range`, in order. REQUIRES: a valid layout.
std::vector<ByteRange> PaddingIn(const ImageLayout& layout, ByteRange range);

// INVALID_ARGUMENT naming the first byte of padding that is not zero. `spans` hold the bytes of `range`.
absl::Status CheckPadding(const ImageLayout& layout, ByteRange range, std::span<const HostSpan> spans);

}  // namespace tensorcast
