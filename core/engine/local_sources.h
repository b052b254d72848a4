// The sources of one ingest: first what this node has already, at another location, then what the caller
// provides.
//
// A local replica is read under a lease. One whose bytes turn out not to match the manifest is withdrawn, so
// that it serves nobody else; a packed file stays on disk until it is written again or the artifact is
// forgotten.
//
// One thread at a time.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/disk/artifact_store.h"
#include "core/engine/replica_table.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class LocalFirstSources final : public SourceProvider {
 public:
  struct Options {
    std::string artifact_id;  // empty: a first ingest, for which there is nothing local
    Location destination;
    int copy_threads = 1;
    ArtifactStore* artifact_store = nullptr;  // told of a packed file that is wrong; may be null
  };
  // `others` may be null: then only this node is asked. `table` and `devices` must outlive it.
  LocalFirstSources(ReplicaTable* table, DeviceRuntime* devices, SourceProvider* others, Options options);

  void ObserveWaits(const WaitObserver& observer) override;
  absl::StatusOr<std::unique_ptr<ChunkSource>> Next(const RequestContext& context,
                                                    const SourceFailure* failure) override;
  std::vector<SourceFailure> TakeUnopened() override;

 private:
  std::unique_ptr<ChunkSource> NextLocal();
  absl::StatusOr<std::unique_ptr<ChunkSource>> Open(std::unique_ptr<ReplicaLease> lease) const;

  ReplicaTable* const table_;
  DeviceRuntime* const devices_;
  SourceProvider* const others_;
  const Options options_;
  std::set<Location> tried_;
  std::vector<SourceFailure> unopened_;  // of this node
  std::string local_replica_;            // whose source was given last; empty: none of this node
  Location local_location_;
  bool others_asked_ = false;
};

}  // namespace tensorcast
