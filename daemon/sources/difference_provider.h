// The sources of an ingest of a version (the target). The first source makes chunks from an earlier version
// on this node (the base) and differences (difference_source.h). The other sources are those of another
// provider.
//
// The differences are on this node before the target's ingest begins (daemon/service/difference_paths.h). If
// a replica was evicted, cannot be opened, or makes a wrong chunk, the remaining chunks come from the other
// sources.
//
// A provider belongs to its ingest's thread.
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
  // OK if the path is used; otherwise the reason why not, for the transfer's report.
  absl::Status unused;
  // Set if the target is written over its base. Null: the base is a separate replica.
  std::shared_ptr<Advance> advance = nullptr;
  // Called when a chunk is wrong although base and differences match their manifests. Called on the ingest's
  // thread, at most once; may be null.
  std::function<void()> on_made_wrong = nullptr;
};

// Provides first a source that rebuilds chunks of `target`, then the sources of `others`. If every chunk can
// be rebuilt, `others` is asked only after the first source failed; otherwise `others` is asked at once.
// `engine` and `devices` must outlive the provider and its sources. `devices` may be null if the base is in
// host memory. A replica that does not match its own manifest is dropped.
std::shared_ptr<SourceProvider> MakeDifferenceProvider(StoreEngine* engine, DeviceRuntime* devices,
                                                       std::shared_ptr<const Manifest> target,
                                                       DifferencePath path,
                                                       std::shared_ptr<SourceProvider> others);

}  // namespace tensorcast::daemon
