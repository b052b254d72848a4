// Copies all that one metadata store holds into another, to move from backend to backend. Neither may be
// in use meanwhile, which each store's own lock sees to. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

struct CopySummary {
  uint64_t artifacts = 0;  // tombstones among them
  uint64_t keys = 0;       // tombstones among them
  uint64_t nodes = 0;
  uint64_t tasks = 0;
  uint64_t manifest_bytes = 0;
  uint64_t written = 0;  // facts that were not there yet
};

// What is there already, of a copy that was broken off, is not written again. Then both are read once more
// and compared, manifests included: DATA_LOSS when they differ. FAILED_PRECONDITION, and nothing is changed,
// when `to` holds what `from` does not. Answers of recent mutations stay behind: callers that might repeat
// one have given up by the time that a store was stopped and copied.
absl::StatusOr<CopySummary> CopyMetadata(MetadataStore& from, MetadataStore& to);

}  // namespace tensorcast::global_store
