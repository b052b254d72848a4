// The sources of one ingest: first what this node has already, or is about to have, at another location, then
// what the caller provides.
//
// A local replica is read under a lease. If its bytes turn out not to match the manifest it is withdrawn, so
// that it serves no other reader; a packed file stays on disk until it is written again or the artifact is
// forgotten.
//
// One thread at a time.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/broadcast/fan_out.h"
#include "core/broadcast/wide_broadcasts.h"
#include "core/device/device_runtime.h"
#include "core/disk/artifact_store.h"
#include "core/replicas/replica_table.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class LocalFirstSources final : public SourceProvider {
 public:
  struct Options {
    std::string artifact_id;  // empty: a first ingest, for which there is nothing local
    Location destination;
    int copy_threads = 1;
    std::string replica_id;                     // of the replica that they are for
    ArtifactStore* artifact_store = nullptr;    // told of a packed file that is wrong; may be null
    FanOut* fan_out = nullptr;                  // may be null; must outlive it and its sources
    WideBroadcasts* wide_broadcasts = nullptr;  // likewise
  };
  // `others` may be null: then only this node is asked. `table` and `devices` must outlive it.
  LocalFirstSources(ReplicaTable* table, DeviceRuntime* devices, SourceProvider* others, Options options);

  // For a replica on a GPU, before the first call of Next: where it is made, and the ingest's span. With it
  // the ingest takes part in broadcasts.
  void SetReceiver(DevicePtr memory, const TraceContext& ingest);

  void ObserveWaits(const WaitObserver& observer) override;
  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override;
  bool NoteStall() override;
  std::vector<SourceFailure> TakeUnopened() override;
  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override;

 private:
  // Those that others gave; what ended of this node's is dealt with here.
  std::vector<SourceFailure> NoteEnded(std::span<const SourceFailure> ended);
  void NoteEnded(const SourceFailure& own);
  std::unique_ptr<ChunkSource> NextLocal(const RequestContext& context);
  // What another node, or this one, broadcasts to several nodes; null: nothing.
  std::unique_ptr<ChunkSource> JoinWideBroadcast(const RequestContext& context);
  // What is in the receiver's memory by a broadcast.
  std::unique_ptr<ChunkSource> OpenArrived(SourceInfo info, DevicePtr memory,
                                           std::shared_ptr<void> membership,
                                           std::shared_ptr<const Availability> arrived);
  // What is broadcast of this replica; null: it is not.
  std::unique_ptr<ChunkSource> JoinBroadcast(const RequestContext& context,
                                             const std::shared_ptr<ReplicaLease>& root);
  absl::StatusOr<std::unique_ptr<ChunkSource>> Open(const std::shared_ptr<ReplicaLease>& lease) const;

  ReplicaTable* const table_;
  DeviceRuntime* const devices_;
  SourceProvider* const others_;
  const Options options_;
  FanOut::Receiver receiver_;  // no memory: it takes part in no broadcast, or no more
  WaitObserver on_wait_ = [](const std::string&) {};
  std::set<Location> tried_;
  std::vector<SourceFailure> unopened_;    // of this node
  std::map<std::string, Location> given_;  // replicas of this node, by id, with sources that have not ended
  bool given_all_ = false;                 // they have all chunks, or will have
  bool others_asked_ = false;
  int others_given_ = 0;  // with sources that have not ended
};

}  // namespace tensorcast
