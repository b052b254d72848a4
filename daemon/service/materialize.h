// MaterializeReplica and AttachReplica: make a replica of an artifact on this node from any source, and issue
// a ticket for the replica's bytes. Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/known_keys.h"
#include "daemon/node/local_node.h"
#include "daemon/service/advances.h"
#include "daemon/service/difference_paths.h"
#include "daemon/service/replicas.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/session/sessions.h"
#include "daemon/sources/source_finder.h"
#include "proto/daemon.pb.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class Materializer {
 public:
  struct Options {
    const LocalNode* node = nullptr;  // all must outlive the materializer
    StoreEngine* engine = nullptr;
    const DeviceRuntime* devices = nullptr;
    const SourceFinder* sources = nullptr;
    GlobalStoreClient* global_store = nullptr;  // for manifests
    KnownKeys* known_keys = nullptr;
    Sessions* sessions = nullptr;                  // issues tickets
    std::string handle_socket = {};                // where tickets are claimed
    const ServeRegistry* servings = nullptr;       // for the grants of attaching daemons
    std::vector<std::string> lanes = {};           // lanes that a request may force
    const DifferencePaths* differences = nullptr;  // null: no differences are used
    bool advance_tasks = false;                    // daemon.advance
  };

  explicit Materializer(Options options) : options_(std::move(options)) {}

  // INVALID_ARGUMENT for an invalid request, NOT_FOUND for unknown keys and artifacts; otherwise the errors
  // of the engine and of the tried sources. `manifest`, if not null, is set to the artifact's manifest.
  absl::StatusOr<v1::MaterializeReplicaResult> Materialize(
      const RequestContext& context, const v1::MaterializeReplicaRequest& request,
      const OnProgress& on_progress, std::shared_ptr<const Manifest>* manifest = nullptr) const;
  // Carries out a task of the global store; writes over the earlier version if daemon.advance says so.
  absl::Status Fulfil(const RequestContext& context, const v1::ReplicationTask& task,
                      const OnProgress& on_progress) const;
  // Begins an ingest that writes an artifact over the replica that `base` leases, once that replica's holders
  // are in `gate`. First fetches differences: `context` limits this fetch, but not the ingest. If the base's
  // location has a replica of the artifact, the ingest reads that replica and then removes it. If another
  // request is making a replica there, waits for that replica, within `context`. Calls `check`
  // before each attempt; an error of `check` ends the call. FAILED_PRECONDITION if the artifact has another
  // layout than the base, or if the base is pinned.
  absl::StatusOr<std::unique_ptr<PendingReplica>> BeginLive(const RequestContext& context,
                                                            const std::string& artifact_id,
                                                            const ReplicaLease& base,
                                                            std::shared_ptr<CommitGate> gate,
                                                            absl::FunctionRef<absl::Status()> check) const;
  absl::StatusOr<v1::AttachReplicaResponse> Attach(const RequestContext& context,
                                                   const v1::AttachReplicaRequest& request,
                                                   const std::string& receiver = "") const;

 private:
  // Finds the artifact that a request names. If the request has an id, the result has no name and no
  // revision. `manifest` may be null. Sets it to the manifest's bytes if they came with the key and this node
  // does not have the manifest.
  absl::StatusOr<v1::ResolveKeyResponse> FindTarget(const RequestContext& context,
                                                    const std::string& artifact_id, const std::string& key,
                                                    bool confirmed, std::string* manifest = nullptr) const;
  absl::StatusOr<v1::ResolveKeyResponse> FindKey(const RequestContext& context, const std::string& key,
                                                 bool confirmed, std::string* manifest) const;
  // Limits the ingest to the chunks that contain these tensors, unless these are all chunks. An empty list
  // means all tensors. INVALID_ARGUMENT for a name that selects no tensor, and for a part at a location that
  // only holds whole replicas.
  static absl::Status ChooseChunks(const google::protobuf::RepeatedPtrField<std::string>& tensors,
                                   IngestRequest& ingest);
  absl::StatusOr<v1::MaterializeReplicaResult> MaterializeTarget(
      const RequestContext& context, const v1::ResolveKeyResponse& target, const std::string& manifest_bytes,
      const v1::MaterializeReplicaRequest& request, AdvanceMode advance, const OnProgress& on_progress,
      std::shared_ptr<const Manifest>* used) const;
  absl::StatusOr<v1::MaterializeReplicaResult> MaterializeBy(const RequestContext& context,
                                                             const v1::MaterializeReplicaRequest& request,
                                                             AdvanceMode advance,
                                                             const OnProgress& on_progress,
                                                             std::shared_ptr<const Manifest>* manifest) const;
  absl::Status CheckLane(const std::string& lane) const;
  // Checks the grant of another daemon of this host, which attaches instead of calling OpenPull.
  absl::Status CheckPeerAttach(const v1::AttachReplicaRequest& request, const std::string& receiver) const;
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseFor(const RequestContext& context,
                                                         const v1::AttachReplicaRequest& request) const;
  // The lease if its replica has the chunks that these names and patterns select; otherwise
  // FAILED_PRECONDITION.
  static absl::StatusOr<std::unique_ptr<ReplicaLease>> CheckHolds(std::unique_ptr<ReplicaLease> lease,
                                                                  std::span<const std::string> tensors);
  const Options options_;
};

}  // namespace tensorcast::daemon
