// The sources of one ingest on this node: replicas of the artifact, ready or being made, at other locations.
// If the ingest writes over a replica under live leases, another replica at the same location is a source,
// too.
//
// A local replica is read under a lease. A replica with wrong bytes is withdrawn. Its packed file stays on
// disk until the file is written again or the artifact is forgotten.
//
// Thread-compatible.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/broadcast/broadcast_member.h"
#include "core/broadcast/fan_out.h"
#include "core/broadcast/wide_broadcasts.h"
#include "core/device/device_runtime.h"
#include "core/disk/artifact_store.h"
#include "core/ingest/provider_chain.h"
#include "core/replicas/replica_table.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// All pointers must outlive the provider and its sources.
struct LocalSourcesOptions {
  ReplicaTable* table = nullptr;
  DeviceRuntime* devices = nullptr;
  int copy_threads = 1;
  ArtifactStore* artifact_store = nullptr;  // gets the packed files with wrong bytes; may be null
  FanOut* fan_out = nullptr;
  WideBroadcasts* wide_broadcasts = nullptr;
  bool same_location = false;  // a replica at the receiver's location is a source, too
  // The ingest that uses the sources. If the ingest writes to a GPU, `receiver` has the GPU's memory, and the
  // ingest takes part in broadcasts (core/broadcast).
  BroadcastReceiver receiver;
};

class LocalSources final : public NodeProvider {
 public:
  explicit LocalSources(LocalSourcesOptions options)
      : options_(std::move(options)), receiver_(options_.receiver) {
    if (!options_.same_location) tried_.insert(options_.receiver.location);
  }

  void ObserveWaits(const WaitObserver& observer) override { on_wait_ = observer; }
  Given Next(const RequestContext& context) override;
  void Ended(const SourceFailure& failure) override;
  std::vector<SourceFailure> TakeUnopened() override { return std::exchange(unopened_, {}); }

 private:
  // A source of the chunks that a broadcast delivers; null if `member` is not set, or if the source cannot be
  // opened.
  std::unique_ptr<ChunkSource> OpenArrived(std::optional<BroadcastMember> member);
  absl::StatusOr<std::unique_ptr<ChunkSource>> Open(const std::shared_ptr<ReplicaLease>& lease) const;

  const LocalSourcesOptions options_;
  BroadcastReceiver receiver_;  // its memory is null if the ingest takes part in no further broadcast
  WaitObserver on_wait_ = [](const std::string&) {};
  std::set<Location> tried_;
  std::vector<SourceFailure> unopened_;
};

}  // namespace tensorcast
