// Reduces the bytes that a get of a new version (the target) has to transfer. This works if this node holds
// an earlier version in host memory or on a GPU, and the global store knows differences from that version to
// the target. The node first gets the differences, like any artifact. Then the target's ingest rebuilds
// chunks from them (daemon/sources/difference_provider.h).
//
// The target has no memory and no leases until the differences are here. If there is no room for a difference
// at once, or a difference cannot be fetched, the whole target is transferred. Thread-safe.
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
    bool in_use = false;  // it is leased or pinned
  };

  explicit DifferencePaths(Options options)
      : options_(std::move(options)), wrong_(std::make_shared<WrongDifferences>(options_.report_wrong)) {}

  // The sources for a whole `target` in host memory or on a GPU: `others`, preceded, if possible, by a source
  // that rebuilds chunks here. Blocks while the differences come. Does not ask the global store if this node
  // holds no version with the target's tensors, or if it has the target or is making it. For an advance, only
  // a target at the wanted location counts: a target elsewhere on this node is the advance's source, without
  // differences.
  struct Prepared {
    std::shared_ptr<SourceProvider> sources;
    std::shared_ptr<Advance> advance;  // null: not wanted, or this node holds no earlier version
  };
  // Asks to write the target over a base at the target's location.
  struct WantedAdvance {
    Location location;
    bool required = false;
  };
  // `known`: the result of Look, if there is one; else the global store is asked.
  Prepared Prepare(const RequestContext& context, const std::shared_ptr<const Manifest>& target,
                   std::shared_ptr<SourceProvider> others,
                   const std::optional<WantedAdvance>& wanted = std::nullopt,
                   std::optional<FoundDifferences> known = std::nullopt) const;

  // Gets the manifest of a target and the differences that lead to it, in one call, when only the target's id
  // is known. nullopt: there was no call, or the call failed.
  std::optional<FoundDifferences> Look(const RequestContext& context, const std::string& target_id,
                                       std::string* manifest) const;

 private:
  // Whole images of this node with the target's layout. Those in host memory come first; within each place,
  // the most recently used come first. None if the node has the target or is making it. If `only_at` is set,
  // looks only at that location. `target`: null if its layout is not known.
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
