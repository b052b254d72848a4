// Copies the whole content of one metadata store into another, to move between backends. No other process may
// use either store meanwhile; each store's own lock ensures this. Not thread-safe.
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
  uint64_t written = 0;  // facts that were not in `to` before
};

// Does not write facts again that an interrupted copy already wrote. At the end reads both stores and
// compares them, including manifests: DATA_LOSS when they differ. FAILED_PRECONDITION, without any change,
// when `to` has facts that `from` does not have. Responses to recent mutations are not copied: callers have
// stopped repeating a mutation by the time that a store was stopped and copied.
absl::StatusOr<CopySummary> CopyMetadata(MetadataStore& from, MetadataStore& to);

}  // namespace tensorcast::global_store
