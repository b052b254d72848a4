// Chunks that this node makes itself, from a replica of an earlier version (the base) in its host memory or
// on one of its GPUs, and from the differences that lead from it to the wanted version, in its host memory.
//
//   base ──d1──► version ──d2──► wanted      each chunk: the base's bytes with all changes, in one pass
//
// The differences are here before the target's ingest begins (daemon/service/difference_paths.h). The base
// and the differences are leased only when the target has its memory, so an ingest never waits for room that
// is held for it. Where the target is written over its base (core/ingest/advance.h), the base is read in that
// memory: a chunk that is not yet in place still has the base's bytes. A replica that was evicted by then,
// cannot be opened, or makes a wrong chunk is given up, and all other chunks come from the other sources: a
// difference saves bytes, and never decides what they are.
//
// Chunks are made on the host, also of a base on a GPU: its bytes come to the buffer of the chunk, and the
// changes are applied there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/engine/engine.h"
#include "core/ingest/advance.h"
#include "core/replica/replica.h"
#include "core/source/chunk_source.h"

namespace tensorcast::daemon {

struct DifferencePath {
  std::string base_id;
  Location base_location = {};                               // of the replica that is read
  std::vector<std::shared_ptr<const Manifest>> differences;  // in the order in which to apply them
  // Why an existing path is not used, for the transfer's report; OK: it is used.
  absl::Status unused;
  // Set where the target is written over its base: the base is read there. Null: the base is a separate
  // replica.
  std::shared_ptr<Advance> advance = nullptr;
  // Called when a chunk is wrong though base and differences match their manifests: a difference was made
  // from other bytes. Called on the ingest's thread, at most once; may be null.
  std::function<void()> on_made_wrong = nullptr;
};

// Provides first a source that rebuilds chunks of `target`, then the sources of `others`. If every chunk can
// be rebuilt, `others` is not asked; otherwise it is asked at once. `engine` and `devices` must outlive the
// provider and its sources. `devices`: may be null where the base is in host memory. A replica that does not
// match its own manifest is dropped.
std::shared_ptr<SourceProvider> MakeDifferenceProvider(StoreEngine* engine, DeviceRuntime* devices,
                                                       std::shared_ptr<const Manifest> target,
                                                       DifferencePath path,
                                                       std::shared_ptr<SourceProvider> others);

}  // namespace tensorcast::daemon
