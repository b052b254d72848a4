// The daemon's calls with the contract's own messages as their results: what the command line, Python and the
// tests need beside Client, and what Client makes its values of. Not part of the installed package.
// Thread-safe. Errors and clocks as in tensorcast/client.h.
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
  // As Client::Connect; `daemon` may also be the address of a global store: then only its calls can be made.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Connect(const ClientOptions& options);
  static absl::StatusOr<std::unique_ptr<AdminClient>> Connect(const std::string& daemon) {
    return Connect(ClientOptions{.daemon = daemon});
  }
  ~AdminClient();
  AdminClient(const AdminClient&) = delete;
  AdminClient& operator=(const AdminClient&) = delete;

  // What the call that gave this replica returned.
  static const v1::MaterializeReplicaResult& ResultOf(const Replica& replica);
  // As Client::Import.
  absl::StatusOr<v1::PutArtifactResult> Import(const RequestContext& context, const std::string& path,
                                               const PutOptions& options = {});

  // Keys, as Client has these calls.
  absl::StatusOr<v1::BindKeyResponse> BindKey(const RequestContext& context, std::string_view key,
                                              std::string_view artifact,
                                              std::optional<uint64_t> expected_revision = std::nullopt,
                                              std::optional<uint32_t> keep = std::nullopt);
  absl::StatusOr<v1::ResolveKeyResponse> ResolveKey(const RequestContext& context, std::string_view key,
                                                    bool confirmed = false);
  absl::Status DeleteKey(const RequestContext& context, std::string_view key,
                         std::optional<uint64_t> expected_revision = std::nullopt);
  // All pages in one.
  absl::StatusOr<v1::ListKeysResponse> ListKeys(const RequestContext& context, std::string_view prefix);
  // Calls `on_key` with each key that is there, then with each change: never with `listed`.
  absl::Status WatchKeys(const RequestContext& context, std::string_view prefix,
                         const std::function<bool(const v1::WatchKeysResponse&)>& on_key);

  // All pages. Replicas are counted, and listed where `replicas` asks for it.
  absl::StatusOr<std::vector<v1::Artifact>> ListArtifacts(const RequestContext& context, bool unkeyed_only,
                                                          absl::Duration min_age, bool replicas = false);
  // One artifact, by its id, with all its replicas.
  absl::StatusOr<v1::Artifact> DescribeArtifact(const RequestContext& context, std::string_view artifact_id);
  absl::Status DeleteArtifact(const RequestContext& context, std::string_view artifact_id);

  // Of the archives of this cluster: what no artifact needs, and the uploads of crashes, both of this age.
  absl::StatusOr<v1::CollectArchivesResponse> CollectArchives(const RequestContext& context,
                                                              absl::Duration min_age, bool dry_run);

  // This daemon's replicas; of one artifact, or all of them. `chunk_bits`: which chunks each has, too.
  absl::StatusOr<std::vector<v1::Replica>> ListReplicas(const RequestContext& context,
                                                        std::string_view artifact_id,
                                                        bool chunk_bits = false);
  // `replica` as Client::SetPinned has it.
  absl::Status EvictReplica(const RequestContext& context, std::string_view replica, bool force);

  absl::StatusOr<v1::GetStatusResponse> GetStatus(const RequestContext& context);
  // What the process's flight recorder has, and what it runs with; also of a global store.
  absl::StatusOr<v1::ProcessRecords> ReadRecords(const RequestContext& context);
  // Whether the daemon's node reaches another one; that it does not is not an error. Needs an operator.
  absl::StatusOr<v1::ProbeNodeResponse> ProbeNode(const RequestContext& context, const std::string& node_id);
  // A transfer to this daemon's node, with the reports of its sources: the daemon asks them.
  absl::StatusOr<v1::ExplainTransferResponse> ExplainTransfer(const RequestContext& context,
                                                              const std::string& transfer_id);
  // How an artifact reached the fleet; also of a global store.
  absl::StatusOr<v1::ExplainRolloutResponse> ExplainRollout(const RequestContext& context,
                                                            const v1::ExplainRolloutRequest& request);
  // Calls `on_status` with the status now and after each interval, until the context ends or it returns
  // false.
  absl::Status WatchStatus(const RequestContext& context, absl::Duration interval,
                           const std::function<bool(const v1::GetStatusResponse&)>& on_status);
  // All pages in one; the counts are those of the last page.
  absl::StatusOr<v1::GetClusterStatusResponse> GetClusterStatus(const RequestContext& context);

  // Makes replication tasks and returns at once; the store carries them out later.
  absl::StatusOr<v1::ReplicateArtifactResponse> Replicate(const RequestContext& context,
                                                          const v1::ReplicateArtifactRequest& request);
  // Those of one artifact, or all. All pages in one.
  absl::StatusOr<v1::ListReplicationTasksResponse> ListReplicationTasks(const RequestContext& context,
                                                                        std::string_view artifact_id);
  // Calls `on_news` with the tasks as they are, `listed`, then each change, until the context or the
  // connection ends or it returns false. The caller watches again where the global store went away.
  absl::Status WatchReplicationTasks(
      const RequestContext& context, std::string_view artifact_id,
      const std::function<bool(const v1::WatchReplicationTasksResponse&)>& on_news);
  absl::StatusOr<v1::CancelReplicationTasksResponse> CancelReplicationTasks(
      const RequestContext& context, const v1::CancelReplicationTasksRequest& request);
  absl::Status DrainNode(const RequestContext& context, std::string_view node_id, bool draining);
  // Needs a connection to a global store: the node id then belongs to no certificate.
  absl::Status ForgetNode(const RequestContext& context, std::string_view node_id);

 private:
  friend struct Session;
  explicit AdminClient(std::shared_ptr<DaemonLink> link);

  const std::shared_ptr<DaemonLink> link_;
};

}  // namespace tensorcast::client
