// Chunks that this node makes itself: from a replica of an earlier version (the base) and the differences
// that lead from it to the wanted one, all in this node's host memory.
//
//   base ──d1──► version ──d2──► wanted      each chunk: the base's bytes with all changes, in one pass
//
// The differences are here before the ingest of the target begins (daemon/service/difference_paths.h). The
// base and the differences are leased only when the target has its memory, so an ingest never waits for room
// that is held for it. Where the target is written over its base (core/ingest/advance.h), the base is read in
// that memory: a chunk that is not in its place yet is the base's there. What was evicted by then, cannot be
// opened, or makes a wrong chunk is given up, and all other chunks come from the other sources: a difference
// saves bytes, and never decides what they are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/artifact/manifest.h"
#include "core/engine/engine.h"
#include "core/ingest/advance.h"
#include "core/source/chunk_source.h"

namespace tensorcast::daemon {

struct DifferencePath {
  std::string base_id;
  std::vector<std::shared_ptr<const Manifest>> differences;  // in the order in which they are applied
  // Why they are not used though the path exists, for the transfer's report; OK: they are used.
  absl::Status unused;
  // Where the target is written over its base: the base is read there. Null: the base is a replica of its
  // own.
  std::shared_ptr<Advance> advance = nullptr;
  // A chunk came out wrong though base and differences match their manifests: a difference was made of other
  // bytes. Called on the ingest's thread, once at most; may be null.
  std::function<void()> on_made_wrong = nullptr;
};

// One source first, which rebuilds chunks of `target`, then what `others` gives. Where every chunk can be
// rebuilt the others are not asked; else they are asked at once. `engine` must outlive the provider and its
// sources. A replica of which the bytes turn out not to match its own manifest is dropped.
std::shared_ptr<SourceProvider> MakeDifferenceProvider(StoreEngine* engine,
                                                       std::shared_ptr<const Manifest> target,
                                                       DifferencePath path,
                                                       std::shared_ptr<SourceProvider> others);

}  // namespace tensorcast::daemon
