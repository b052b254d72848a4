// Replicas that become a later version while processes are attached to them (proto/live.proto).
//
// - AttachLive returns a hold, which is the token of a live lease.
// - PrepareVersion stages the version by an ingest.
// - CommitVersion keeps the caller in the ingest's gate (core/replicas/commit_gate.h) until the ingest ends.
//
// A replica has one ingest at a time; all calls about the same version share the ingest. The ingest is
// cancelled when the replica's last hold ends, or when another version is prepared. Before the version is
// staged, the ingest is also cancelled when the last call that waits for the version ends.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/engine/engine.h"
#include "core/replicas/commit_gate.h"
#include "daemon/service/live_updates.h"
#include "daemon/service/materialize.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/session/sessions.h"
#include "proto/live.pb.h"

namespace tensorcast::daemon {

class LiveReplicas {
 public:
  struct Options {
    StoreEngine* engine = nullptr;  // all must outlive this object
    const DeviceRuntime* devices = nullptr;
    const Materializer* materializer = nullptr;
    Sessions* sessions = nullptr;
    const ServeRegistry* servings = nullptr;
    std::string handle_socket = {};
  };

  explicit LiveReplicas(Options options);
  // REQUIRES: no call is under way.
  ~LiveReplicas();
  LiveReplicas(const LiveReplicas&) = delete;
  LiveReplicas& operator=(const LiveReplicas&) = delete;

  // The calls AttachLive, PrepareVersion and CommitVersion of proto/live.proto.
  absl::StatusOr<v1::AttachLiveResponse> Attach(const v1::AttachLiveRequest& request);
  absl::StatusOr<v1::PrepareVersionResponse> Prepare(const RequestContext& context,
                                                     const v1::PrepareVersionRequest& request);
  absl::StatusOr<v1::CommitVersionResponse> Commit(const RequestContext& context,
                                                   const v1::CommitVersionRequest& request);

  // Call Stop when the daemon ends. Waiting calls and later calls return UNAVAILABLE. A rewrite that has
  // begun completes.
  void Stop();

 private:
  // `what` names the call in errors.
  absl::StatusOr<std::shared_ptr<LiveLease>> Find(const std::string& hold, std::string_view what) const;
  // Makes a hold for the lease. Returns the hold's name and the lease.
  std::pair<std::string, std::shared_ptr<LiveLease>> MakeHold(std::unique_ptr<ReplicaLease> lease) const;
  // Stages the artifact for the replica of `base`, and returns the update when it is staged.
  absl::StatusOr<LiveUpdatePtr> Stage(const RequestContext& context,
                                      const std::shared_ptr<const ReplicaLease>& base,
                                      const std::string& artifact_id);
  void Start(const RequestContext& context, const ReplicaLease& base, const LiveUpdatePtr& update);
  // FAILED_PRECONDITION if processes hold a live lease on another replica of this artifact at the location:
  // the commit would remove that replica.
  absl::Status CheckNotHeldElsewhere(const std::string& artifact_id, const Location& location) const;
  // FAILED_PRECONDITION if a replica at this location cannot become another version in its memory.
  absl::Status CheckCanChange(const Location& location) const;
  // Keeps the holder in the update's gate until the replica is rewritten, and gives the holder a new lease.
  // After an error, either nothing was written and the holder keeps its lease, or the replica is lost. If the
  // replica is lost, the holder has no lease, and all holds of the replica end.
  absl::Status Rewrite(const RequestContext& context, const LiveUpdatePtr& update,
                       const std::shared_ptr<LiveLease>& holder);
  absl::Status NameMissing(const absl::Status& ended, const LiveUpdate& update) const;

  const Options options_;
  const std::shared_ptr<LiveUpdates> updates_;
};

}  // namespace tensorcast::daemon
