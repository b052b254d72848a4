// Reduces the bytes that a get of a new version (the target) transfers, if this node holds an earlier version
// in host memory or on a GPU. First gets the differences from the earlier version to the target, like any
// artifact. The target's ingest then rebuilds chunks from the differences
// (daemon/sources/difference_provider.h).
//
// If a difference cannot be fetched, or has no room at once, the whole target is transferred. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/engine/engine.h"
#include "core/ingest/advance.h"
#include "core/source/chunk_source.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/service/wrong_differences.h"
#include "daemon/sources/source_finder.h"

namespace tensorcast::daemon {

class DifferencePaths {
 public:
  struct Options {
    StoreEngine* engine = nullptr;  // all must outlive this object
    GlobalStoreClient* global_store = nullptr;
    const SourceFinder* sources = nullptr;
    DeviceRuntime* devices = nullptr;
    // Reports a difference that makes wrong bytes. The function's captures must outlive the engine. Null: no
    // difference is reported.
    WrongDifferences::Report report_wrong = nullptr;
  };

  // An image that can be the base of a path of differences.
  struct Base {
    std::string artifact_id;
    Location location;
    bool in_use = false;  // the image is leased or pinned
  };

  explicit DifferencePaths(Options options)
      : options_(std::move(options)), wrong_(std::make_shared<WrongDifferences>(options_.report_wrong)) {}

  struct Prepared {
    std::shared_ptr<SourceProvider> sources;
    std::shared_ptr<Advance> advance;  // null: not wanted, or found no replica to write over
  };
  // Asks to write the target over a base at `location`.
  struct WantedAdvance {
    Location location;
    bool required = false;
  };
  // Returns the sources for a whole `target` in host memory or on a GPU: `others` and, if possible, before
  // them a source that rebuilds chunks here. Blocks until the differences are on this node. `known`: the
  // result of Look; nullopt: Prepare asks the global store.
  Prepared Prepare(const RequestContext& context, const std::shared_ptr<const Manifest>& target,
                   std::shared_ptr<SourceProvider> others,
                   const std::optional<WantedAdvance>& wanted = std::nullopt,
                   std::optional<FoundDifferences> known = std::nullopt) const;

  // Gets a target's manifest and the differences to the target in one call. nullopt: the call failed, or was
  // not made because this node has no image that can be the base, or too many.
  std::optional<FoundDifferences> Look(const RequestContext& context, const std::string& target_id,
                                       std::string* manifest) const;

 private:
  // Whole images of this node with the target's layout, up to a limit: images in host memory and then images
  // on GPUs, the last used first. `only_at`: the only location to search. Empty if a searched location
  // has or makes the target. `target`: null if the layout is not known; then images of any layout.
  std::vector<Base> FindBases(const std::string& target_id, const Manifest* target,
                              const std::optional<Location>& only_at) const;
  // The manifests of the path, after a check that they lead from a base to the target.
  absl::StatusOr<std::vector<std::shared_ptr<const Manifest>>> ManifestsOf(const RequestContext& context,
                                                                           const FoundDifferences& found,
                                                                           const Manifest& target) const;
  // Blocks until all differences are in this node's host memory.
  absl::Status Bring(const RequestContext& context,
                     const std::vector<std::shared_ptr<const Manifest>>& differences) const;

  const Options options_;
  const std::shared_ptr<WrongDifferences> wrong_;  // ingests may keep it beyond this object
};

}  // namespace tensorcast::daemon
