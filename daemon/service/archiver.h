// Archives: artifacts packed into an object store (daemon.archives) with this daemon's credentials.
//
// An archived artifact has two objects in the cluster's folder below the place (an entry of daemon.archives):
//   s3://bucket/prefix/<cluster id>/tc2-....tcpack       the packed file, as core/disk/FORMAT.md has it
//   s3://bucket/prefix/<cluster id>/tc2-....tcmanifest   the manifest's canonical bytes; written last
// The objects depend only on the artifact, so any node may write them again. A global store that lost its
// metadata has a new cluster id, and so a new folder.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/artifact/origin.h"
#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_client.h"
#include "objects/origins/origins.h"
#include "objects/s3/s3_writer.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

class Archiver {
 public:
  struct Options {
    std::vector<std::string> places;                  // daemon.archives
    std::shared_ptr<const objects::S3Writer> writer;  // null: there are no places
    objects::Origins writable;                        // the places, for files beside a model
    std::string node_id;
    std::function<std::string()> cluster_id;  // returns "" until the id is known
    StoreEngine* engine = nullptr;            // both must outlive the archiver
    GlobalStoreClient* global_store = nullptr;
  };

  explicit Archiver(Options options) : options_(std::move(options)) {}

  // PERMISSION_DENIED if `place` is not one of daemon.archives. UNAVAILABLE if the cluster id is not known
  // yet.
  absl::Status CheckPlace(std::string_view place) const;
  // Packs the replica's artifact into the place, and returns the packed object as an origin of the artifact.
  // Skips objects that exist.
  absl::StatusOr<Origin> Archive(const RequestContext& context, const ReplicaLease& lease,
                                 const std::string& place) const;

  // CheckBeside returns PERMISSION_DENIED if `uri` is outside daemon.archives. WriteBeside writes a model's
  // manifest to `uri`, a result of ManifestUriOf (core/safetensors/manifest_beside.h).
  absl::Status CheckBeside(std::string_view uri) const;
  absl::Status WriteBeside(const RequestContext& context, const Manifest& manifest,
                           const std::string& uri) const;

  // Carries out CollectArchives in all places. Keeps objects and uploads that are younger than `min_age` or
  // that this daemon writes now. An older upload of another node counts as interrupted.
  absl::StatusOr<v1::CollectArchivesResponse> Collect(const RequestContext& context,
                                                      const v1::CollectArchivesRequest& request) const;

 private:
  class InFlight;

  // The folder of this cluster, ending with '/'.
  absl::StatusOr<std::string> FolderOf(std::string_view place) const;
  absl::Status CollectIn(const RequestContext& context, const std::string& folder, absl::Time before,
                         bool dry_run, v1::CollectArchivesResponse& response) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  mutable std::multiset<std::string> in_flight_ ABSL_GUARDED_BY(mutex_);  // URIs that this process writes
};

}  // namespace tensorcast::daemon
