// The checks that every source makes of a request. Private to this folder.
#pragma once

#include "absl/status/status.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// "chunk 3 from peer-a", for messages.
std::string DescribeFetch(const SourceInfo& info, const ChunkRequest& request);

// INVALID_ARGUMENT unless the destination is exactly as long as the range.
absl::Status CheckDestination(const SourceInfo& info, const ChunkRequest& request);

}  // namespace tensorcast
