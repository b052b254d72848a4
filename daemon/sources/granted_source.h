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

// The result of opening a source, and the lanes over which the opening failed.
struct GrantOpening {
  std::string grant_id;
  absl::StatusOr<std::unique_ptr<ChunkSource>> source;  // the error is that of the last lane
  bool pull_opened = false;                   // the source may have opened a pull, which needs a ClosePull
  std::shared_ptr<const PulledBytes> pulled;  // of that pull; null: the source cannot count its bytes
  std::vector<SourceFailure> unopened;        // each failed lane, in the order of the attempts
};

// A SourceFailure that says why the source of a grant was not opened over this lane.
SourceFailure FailureToOpen(const v1::TransportGrant& grant, const std::string& lane, absl::Status status);

class GrantedSourceOpener {
 public:
  struct Options {
    std::string node_id;                            // of this node, the receiver
    std::vector<transport::Transport*> transports;  // must outlive the sources, like the other pointers
    LocalAttacher* local = nullptr;
    PeerClient* peers = nullptr;
    absl::Duration peer_timeout = absl::Seconds(10);  // max wait for an answer, and between bytes of a pull
  };

  // Must outlive its sources.
  explicit GrantedSourceOpener(Options options) : options_(std::move(options)) {}

  // Tries the grant's lane. Then, unless `forced_lane` is set, tries the other lanes that both nodes have and
  // the grant covers. Records a span P2P/Connect for each attempt. `revoked` ends the opened source when the
  // grant is revoked. Logs a failing lane of a peer once, until that lane works again.
  GrantOpening Open(const RequestContext& context, const v1::TransportGrant& grant, const Manifest& manifest,
                    std::string_view forced_lane, const Cancellation& revoked) const;

 private:
  std::vector<std::string> LanesToTry(const v1::TransportGrant& grant, std::string_view forced_lane) const;
  // Connects a pull over this lane.
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

  // Call this after a source of this peer was opened, perhaps not over the first lane: logs each failed lane
  // once.
  void NoteLane(const std::string& peer, const GrantOpening& opening) const;

  // Records whether a pull of this lane could be prepared to write into GPU memory.
  void NoteDevice(const std::string& peer, const std::string& lane, const absl::Status& ready) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  // The logged failures: the peer's name, and the lane that failed, or that could not reach GPU memory.
  mutable std::set<std::pair<std::string, std::string>> warned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
