// The calls that a daemon makes to the global store, without the RPC machinery; tests use a double.
//
// A call ends at its context's deadline and returns the global store's error unchanged. UNAVAILABLE, with the
// store's address, means that the store cannot be reached, or is late with an answer that a healthy store
// gives at once. When the store has been away for longer than kShortAbsence (with several stores: kTakeOver),
// the error says not to retry. An answer of an earlier leader (rpc/epoch.h) counts as none. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/manifest.h"
#include "proto/global_store.pb.h"
#include "rpc/epoch.h"

namespace tensorcast::daemon {

class GlobalStoreChannel;

// What the timeout of a call says about the global store.
enum class Timeout : uint8_t {
  kMeansSilence,  // a healthy store answers such a call at once
  kMeansNothing,  // the store may wait for nodes before it answers, or a part of the answer came
};

// A path to an artifact: differences in the order in which to apply them. Each difference has a source now.
// `path` is empty if every path has at least half the image's bytes.
struct FoundDifferences {
  std::vector<v1::Difference> path;
  // The manifests of the path's differences, as canonical bytes, not yet verified. The last manifests may be
  // missing.
  std::vector<std::string> manifests;
};

struct Copies {
  std::vector<v1::Replica> replicas;  // the ready replicas
  bool has_origin = false;
  bool empty() const { return replicas.empty() && !has_origin; }
};

class GlobalStoreClient {
 public:
  virtual ~GlobalStoreClient() = default;

  virtual absl::StatusOr<v1::RegisterNodeResponse> RegisterNode(const RequestContext& context,
                                                                const v1::RegisterNodeRequest& request) = 0;
  virtual absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const RequestContext& context,
                                                          const v1::HeartbeatRequest& request) = 0;
  // Streams the messages unchanged.
  virtual absl::StatusOr<v1::ReconcileInventoryResponse> ReconcileInventory(
      const RequestContext& context, const std::vector<v1::ReconcileInventoryRequest>& messages) = 0;
  virtual absl::StatusOr<v1::UpdateReplicasResponse> UpdateReplicas(
      const RequestContext& context, const v1::UpdateReplicasRequest& request) = 0;
  virtual absl::StatusOr<v1::RequestEvictionResponse> RequestEviction(
      const RequestContext& context, const v1::RequestEvictionRequest& request) = 0;
  virtual absl::Status DrainNode(const RequestContext& context, const v1::DrainNodeRequest& request) = 0;

  // Streams the manifest in pieces; `first` has all other fields. `asking`: the caller, as in rpc::Caller;
  // the global store checks the caller's right to bind the key. Empty: this node itself.
  virtual absl::StatusOr<v1::PublishArtifactResponse> PublishArtifact(const RequestContext& context,
                                                                      const Manifest& manifest,
                                                                      const v1::PublishArtifactRequest& first,
                                                                      const std::string& asking) = 0;
  // Like PublishArtifact, but also publishes, in the same transaction, a difference that makes the artifact.
  // `difference`: the difference's manifest. `first.difference_replica`: this node's replica of the
  // difference. FAILED_PRECONDITION if the base is gone; the caller may then call PublishArtifact.
  virtual absl::StatusOr<v1::PublishArtifactResponse> PublishWithDifference(
      const RequestContext& context, const Manifest& manifest, const Manifest& difference,
      const v1::PublishArtifactRequest& first, const std::string& asking) = 0;
  // The manifest's canonical bytes as the global store has them, not yet verified.
  virtual absl::StatusOr<std::string> FetchManifest(const RequestContext& context,
                                                    std::string_view artifact_id) = 0;
  // The path with the fewest bytes from one of the `held` artifacts to this artifact. REQUIRES: this node has
  // whole images of the `held` artifacts. `manifest`, if not null, gets the artifact's manifest, not yet
  // verified. NOT_FOUND for an unknown artifact.
  virtual absl::StatusOr<FoundDifferences> FindDifferences(const RequestContext& context,
                                                           std::string_view artifact_id,
                                                           const std::vector<std::string>& held,
                                                           std::string* manifest) = 0;
  // The copies of an artifact that live nodes have. NOT_FOUND for an unknown artifact.
  virtual absl::StatusOr<Copies> FindCopies(const RequestContext& context, std::string_view artifact_id) = 0;
  // Only KnownKeys calls this; other code calls KnownKeys. Does not retry. `manifest`, if not null, gets the
  // canonical bytes of the artifact's manifest, not yet verified. The bytes are empty if the manifest did not
  // arrive completely.
  virtual absl::StatusOr<v1::Key> ResolveKey(const RequestContext& context, const std::string& key,
                                             std::string* manifest) = 0;
  // The nodes with these names that the global store knows. REQUIRES: at least one name.
  virtual absl::StatusOr<std::vector<v1::Node>> FindNodes(const RequestContext& context,
                                                          const std::vector<std::string>& names) = 0;

  virtual absl::StatusOr<v1::RequestReplicaTransportResponse> RequestReplicaTransport(
      const RequestContext& context, const v1::RequestReplicaTransportRequest& request) = 0;
  virtual absl::Status CompleteReplicaTransport(const RequestContext& context,
                                                const v1::CompleteReplicaTransportRequest& request) = 0;
  // Does not retry.
  virtual absl::StatusOr<v1::JoinBroadcastResponse> JoinBroadcast(
      const RequestContext& context, const v1::JoinBroadcastRequest& request) = 0;

  // The time since the first call that failed after the last answer; zero while the store answers.
  virtual absl::Duration away_for() const = 0;
  // Call this with the result of an RPC that other code made on the same channel. Records whether the store
  // answered, and returns the RPC's error in the form of the calls above. REQUIRES: the RPC began at `began`.
  virtual absl::Status Noted(absl::Status status, SteadyTime began, Timeout timeout) = 0;
  // The fence for all answers of this global store, including answers to RPCs of other code.
  virtual rpc::EpochFence& fence() = 0;
};

// While the store has been away for less time than this, failed calls may be retried. A restart of the store
// takes less time than this.
inline constexpr absl::Duration kShortAbsence = absl::Seconds(2);
// Replaces kShortAbsence if there are several global stores. The next store leads within about three seconds
// (global_store/metadata/etcd).
inline constexpr absl::Duration kTakeOver = absl::Seconds(8);

// Errors name the channel's address. While the global store is away, the calls that register and report the
// node look up the store's host names again.
std::unique_ptr<GlobalStoreClient> MakeGlobalStoreClient(std::shared_ptr<GlobalStoreChannel> channel);

}  // namespace tensorcast::daemon
