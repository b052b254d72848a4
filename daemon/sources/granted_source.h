// Opens the source that a grant permits: attaches to a daemon of this host, or pulls over a lane from a
// daemon of another host. Thread-safe.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/artifact/manifest.h"
#include "core/source/chunk_source.h"
#include "daemon/sources/local_attach.h"
#include "daemon/sources/peer_client.h"
#include "daemon/telemetry/conservation.h"
#include "proto/global_store.pb.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// The result of opening a source, with the lanes that were tried before.
struct GrantOpening {
  std::string grant_id;
  absl::StatusOr<std::unique_ptr<ChunkSource>> source;  // the error is that of the last lane
  bool pull_opened = false;                             // perhaps at the source, which then needs a ClosePull
  std::shared_ptr<const PulledBytes> pulled;  // of that pull; null: its source cannot count what it serves
  std::vector<SourceFailure> unopened;        // each lane that failed, in the order of the tries
};

// Why the source of a grant was not opened over this lane.
SourceFailure FailureToOpen(const v1::TransportGrant& grant, const std::string& lane, absl::Status status);

class GrantedSourceOpener {
 public:
  struct Options {
    std::string node_id;                            // of this node, the receiver
    std::vector<transport::Transport*> transports;  // must outlive the sources, like the other pointers
    LocalAttacher* local = nullptr;
    PeerClient* peers = nullptr;
    absl::Duration peer_timeout = absl::Seconds(10);  // for an answer, and for bytes of a pull
  };

  // Must outlive its sources.
  explicit GrantedSourceOpener(Options options) : options_(std::move(options)) {}

  // Tries the grant's lane and then, unless `forced_lane` is given, the others that both nodes have and that
  // the grant covers: each try is a P2P/Connect span. `revoked` ends what is opened from outside. A peer
  // with a lane that fails is warned about once, until that lane works again.
  GrantOpening Open(const RequestContext& context, const v1::TransportGrant& grant, const Manifest& manifest,
                    std::string_view forced_lane, const Cancellation& revoked) const;

 private:
  std::vector<std::string> LanesToTry(const v1::TransportGrant& grant, std::string_view forced_lane) const;
  // The connect stage of a pull over this lane.
  absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOver(const RequestContext& context,
                                                        const v1::TransportGrant& grant,
                                                        const Manifest& manifest, const std::string& lane,
                                                        const Cancellation& revoked,
                                                        GrantOpening* opening) const;
  absl::StatusOr<std::unique_ptr<ChunkSource>> PullOver(const RequestContext& context,
                                                        const v1::TransportGrant& grant,
                                                        const TraceContext& pulling, const std::string& lane,
                                                        const Cancellation& revoked,
                                                        GrantOpening* opening) const;

  // A source of this peer was opened: perhaps not by the lane that was tried first.
  void NoteLane(const std::string& peer, const GrantOpening& opening) const;

  // Whether a pull of that lane could be readied to write into a GPU's memory.
  void NoteDevice(const std::string& peer, const std::string& lane, const absl::Status& ready) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  // Of these, by the peer's name and the lane that failed, or its way to GPUs.
  mutable std::set<std::pair<std::string, std::string>> warned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
