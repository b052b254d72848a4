// The way by which a get of a new version needs few bytes: this node holds an earlier version in host memory,
// and the global store knows differences that lead from it to the wanted one. They are brought here first, as
// any artifact is, through the swarm; then the ingest of the target rebuilds chunks from them
// (daemon/sources/difference_source.h).
//
// Nothing is held for the target meanwhile: a difference for which there is no room at once, or that cannot
// be had, is left out, and the target comes whole. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
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
    StoreEngine* engine = nullptr;  // all must outlive it
    GlobalStoreClient* global_store = nullptr;
    const SourceFinder* sources = nullptr;
    // Of a difference that makes wrong bytes; what it uses must outlive the engine. Null: none is reported.
    WrongDifferences::Report report_wrong = nullptr;
  };

  explicit DifferencePaths(Options options)
      : options_(std::move(options)), wrong_(std::make_shared<WrongDifferences>(options_.report_wrong)) {}

  // The sources of a whole `target` that is to be made in host memory: `others`, or those after chunks that
  // are rebuilt here. Blocks while the differences come. Where this node has the target, makes it, or holds
  // no version with such tensors, the global store is not asked.
  struct Prepared {
    std::shared_ptr<SourceProvider> sources;
    std::shared_ptr<Advance> advance;  // null: not wanted, or this node holds no earlier version
  };
  // Makes the advance of one base, where an advance is wanted. May be null.
  using MakeAdvance = std::function<std::shared_ptr<Advance>(const std::string& base_id)>;
  Prepared Prepare(const RequestContext& context, const std::shared_ptr<const Manifest>& target,
                   std::shared_ptr<SourceProvider> others, const MakeAdvance& make_advance = nullptr) const;

 private:
  // Artifacts of which this node has a whole image in host memory that is cut like the target's, those used
  // last first; none where it has the target or is making it.
  std::vector<std::string> FindBases(const Manifest& target) const;
  // The manifests of the path, checked: they lead from a base to the target.
  absl::StatusOr<std::vector<std::shared_ptr<const Manifest>>> ManifestsOf(
      const RequestContext& context, const std::vector<v1::Difference>& path, const Manifest& target) const;
  // Blocks until they are all in this node's host memory.
  absl::Status Bring(const RequestContext& context,
                     const std::vector<std::shared_ptr<const Manifest>>& differences) const;

  const Options options_;
  const std::shared_ptr<WrongDifferences> wrong_;  // also of ingests that outlive this
};

}  // namespace tensorcast::daemon
