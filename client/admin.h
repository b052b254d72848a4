// AdminClient makes calls to the daemon and returns the messages of proto/. For the command line,
// Python, the tests and Client; not part of the installed package. Thread-safe. tensorcast/client.h describes
// the errors and clocks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "proto/daemon.pb.h"
#include "proto/global_store.pb.h"
#include "proto/records.pb.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

class DaemonLink;

class AdminClient {
 public:
  // Connects like Client::Connect. `daemon` may also be the address of a global store. A global store serves
  // some of these calls, and returns UNIMPLEMENTED for all others.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Connect(const ClientOptions& options);
  static absl::StatusOr<std::unique_ptr<AdminClient>> Connect(const std::string& daemon) {
    return Connect(ClientOptions{.daemon = daemon});
  }
  ~AdminClient();
  AdminClient(const AdminClient&) = delete;
  AdminClient& operator=(const AdminClient&) = delete;

  // The daemon's result from which `replica` was made.
  static const v1::MaterializeReplicaResult& ResultOf(const Replica& replica);
  // See Client::Import.
  absl::StatusOr<v1::PutArtifactResult> Import(const RequestContext& context, const std::string& path,
                                               const PutOptions& options = {});

  // The calls about keys: see Client's calls of the same names.
  absl::StatusOr<v1::BindKeyResponse> BindKey(const RequestContext& context, std::string_view key,
                                              std::string_view artifact,
                                              std::optional<uint64_t> expected_revision = std::nullopt,
                                              std::optional<uint32_t> keep = std::nullopt);
  absl::StatusOr<v1::ResolveKeyResponse> ResolveKey(const RequestContext& context, std::string_view key,
                                                    bool confirmed = false);
  absl::Status DeleteKey(const RequestContext& context, std::string_view key,
                         std::optional<uint64_t> expected_revision = std::nullopt);
  // Returns all pages in one response.
  absl::StatusOr<v1::ListKeysResponse> ListKeys(const RequestContext& context, std::string_view prefix);
  // Calls `on_key` with each existing key, then with each change; not for a message that only sets `listed`.
  absl::Status WatchKeys(const RequestContext& context, std::string_view prefix,
                         const std::function<bool(const v1::WatchKeysResponse&)>& on_key);

  // Returns all pages. Each artifact has the number of its ready replicas and, with `replicas`, the list of
  // its replicas.
  absl::StatusOr<std::vector<v1::Artifact>> ListArtifacts(const RequestContext& context, bool unkeyed_only,
                                                          absl::Duration min_age, bool replicas = false);
  // One artifact, by its id, with all its replicas.
  absl::StatusOr<v1::Artifact> DescribeArtifact(const RequestContext& context, std::string_view artifact_id);
  // Deletes the artifact on all nodes. FAILED_PRECONDITION while a key names it.
  absl::Status DeleteArtifact(const RequestContext& context, std::string_view artifact_id);

  // Deletes packs and manifests from this cluster's archives if the global store no longer knows their
  // artifact. Ends uploads that began more than `min_age` ago, even if another node still runs the upload.
  // Keeps everything younger than `min_age`. With `dry_run`, only lists what a call would delete.
  absl::StatusOr<v1::CollectArchivesResponse> CollectArchives(const RequestContext& context,
                                                              absl::Duration min_age, bool dry_run);

  // This daemon's replicas of one artifact, or all replicas of the daemon if `artifact_id` is empty.
  // `chunk_bits` adds the set of chunks of each replica.
  absl::StatusOr<std::vector<v1::Replica>> ListReplicas(const RequestContext& context,
                                                        std::string_view artifact_id,
                                                        bool chunk_bits = false);
  // `replica` names replicas as in Client::SetPinned. A leased replica is removed when its last lease ends.
  // FAILED_PRECONDITION if a replica is pinned or still being made. Without `force`, also FAILED_PRECONDITION
  // for a last copy, and UNAVAILABLE if the daemon cannot ask the global store.
  absl::Status EvictReplica(const RequestContext& context, std::string_view replica, bool force);

  absl::StatusOr<v1::GetStatusResponse> GetStatus(const RequestContext& context);
  // The contents of the process's flight recorder, and its build and configuration. A global store serves
  // this call, too.
  absl::StatusOr<v1::ProcessRecords> ReadRecords(const RequestContext& context);
  // Probes whether the daemon's node reaches another node. An unreachable node is a result, not an error.
  // Needs the operator role.
  absl::StatusOr<v1::ProbeNodeResponse> ProbeNode(const RequestContext& context, const std::string& node_id);
  // Explains one transfer that this daemon received. The daemon adds the reports of the transfer's sources.
  absl::StatusOr<v1::ExplainTransferResponse> ExplainTransfer(const RequestContext& context,
                                                              const std::string& transfer_id);
  // Explains how an artifact reached the nodes of the cluster. A global store serves this call, too.
  absl::StatusOr<v1::ExplainRolloutResponse> ExplainRollout(const RequestContext& context,
                                                            const v1::ExplainRolloutRequest& request);
  // Calls `on_status` with the status at once and after each interval, until the context ends or `on_status`
  // returns false.
  absl::Status WatchStatus(const RequestContext& context, absl::Duration interval,
                           const std::function<bool(const v1::GetStatusResponse&)>& on_status);
  // Returns all pages in one response; the counts are those of the last page.
  absl::StatusOr<v1::GetClusterStatusResponse> GetClusterStatus(const RequestContext& context);

  // Makes replication tasks and returns at once. The global store carries out the tasks later.
  absl::StatusOr<v1::ReplicateArtifactResponse> Replicate(const RequestContext& context,
                                                          const v1::ReplicateArtifactRequest& request);
  // The tasks of one artifact, or all tasks if `artifact_id` is empty. Returns all pages in one response.
  absl::StatusOr<v1::ListReplicationTasksResponse> ListReplicationTasks(const RequestContext& context,
                                                                        std::string_view artifact_id);
  // Calls `on_news` with the existing tasks, then with a message that has `listed` set, then with each
  // change. Ends when the context ends, the connection ends, or `on_news` returns false. Does not reconnect.
  absl::Status WatchReplicationTasks(
      const RequestContext& context, std::string_view artifact_id,
      const std::function<bool(const v1::WatchReplicationTasksResponse&)>& on_news);
  absl::StatusOr<v1::CancelReplicationTasksResponse> CancelReplicationTasks(
      const RequestContext& context, const v1::CancelReplicationTasksRequest& request);
  // Begins the drain of a node (DrainNodeRequest in proto/global_store.proto); `draining` false ends it.
  absl::Status DrainNode(const RequestContext& context, std::string_view node_id, bool draining);
  // Allows a node with another certificate to use this node id. Needs a connection to a global store.
  absl::Status ForgetNode(const RequestContext& context, std::string_view node_id);

 private:
  friend struct Session;
  explicit AdminClient(std::shared_ptr<DaemonLink> link);

  const std::shared_ptr<DaemonLink> link_;
};

}  // namespace tensorcast::client
