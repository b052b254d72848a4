// Copies the facts and manifests of one metadata store into another, to move between backends. The lock of
// each store keeps other processes away meanwhile. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

struct CopySummary {
  uint64_t artifacts = 0;  // including tombstones
  uint64_t keys = 0;       // including tombstones
  uint64_t nodes = 0;
  uint64_t tasks = 0;
  uint64_t manifest_bytes = 0;
  uint64_t written = 0;  // number of facts that `to` did not have before
};

// Skips facts that `to` already has, so an interrupted copy can be repeated. Then reads both stores,
// including manifests, and compares them: DATA_LOSS if they differ. FAILED_PRECONDITION, without any change:
// `to` has a fact that `from` does not have, or a fact with another record than in `from`. Does not copy
// the responses to recent mutations.
absl::StatusOr<CopySummary> CopyMetadata(MetadataStore& from, MetadataStore& to);

}  // namespace tensorcast::global_store
