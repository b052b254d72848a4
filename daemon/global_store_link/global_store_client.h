// The calls a daemon makes to the global store, without the RPC machinery: a seam that tests fill with a
// double.
//
// Every call is bounded by its context's deadline and returns the global store's status as it is. When it
// cannot be reached, or does not answer in time what it answers at once when it is well, that is UNAVAILABLE
// with its address; once it is away for longer than kShortAbsence (several that stand by for each other:
// kTakeOver), such an error is not to be retried (rpc/retry.h). An answer of a global store that led before
// one that was heard of (rpc/epoch.h) is none. Thread-safe.
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

// What it says of the global store that the time of a call ran out.
enum class Timeout : uint8_t {
  kMeansSilence,  // one that is well answers such a call at once
  kMeansNothing,  // it may wait for nodes before it answers; or part of its answer is here
};

class GlobalStoreClient {
 public:
  virtual ~GlobalStoreClient() = default;

  virtual absl::StatusOr<v1::RegisterNodeResponse> RegisterNode(const RequestContext& context,
                                                                const v1::RegisterNodeRequest& request) = 0;
  virtual absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const RequestContext& context,
                                                          const v1::HeartbeatRequest& request) = 0;
  // Streams the messages as they are.
  virtual absl::StatusOr<v1::ReconcileInventoryResponse> ReconcileInventory(
      const RequestContext& context, const std::vector<v1::ReconcileInventoryRequest>& messages) = 0;
  virtual absl::StatusOr<v1::UpdateReplicasResponse> UpdateReplicas(
      const RequestContext& context, const v1::UpdateReplicasRequest& request) = 0;
  virtual absl::StatusOr<v1::RequestEvictionResponse> RequestEviction(
      const RequestContext& context, const v1::RequestEvictionRequest& request) = 0;
  virtual absl::Status DrainNode(const RequestContext& context, const v1::DrainNodeRequest& request) = 0;

  // Streams the manifest in pieces; `first` holds everything else. `asking`: the caller, as rpc::Caller
  // has it; the global store checks its right to bind the key. Empty: this node by itself.
  virtual absl::StatusOr<v1::PublishArtifactResponse> PublishArtifact(const RequestContext& context,
                                                                      const Manifest& manifest,
                                                                      const v1::PublishArtifactRequest& first,
                                                                      const std::string& asking) = 0;
  // As PublishArtifact, and in the same transaction `difference`, the manifest of one that makes the artifact
  // from another: both exist then, or neither. `first.difference_replica` is this node's replica of it.
  // FAILED_PRECONDITION where its base is gone: the artifact can be published without it.
  virtual absl::StatusOr<v1::PublishArtifactResponse> PublishWithDifference(
      const RequestContext& context, const Manifest& manifest, const Manifest& difference,
      const v1::PublishArtifactRequest& first, const std::string& asking) = 0;
  // The manifest's canonical bytes, as the global store has them: not yet verified.
  virtual absl::StatusOr<std::string> FetchManifest(const RequestContext& context,
                                                    std::string_view artifact_id) = 0;
  // The path of the fewest bytes from one of the `held` artifacts, of which this node has whole images, to
  // the artifact: differences that have a source now, in the order in which they are applied. Empty where the
  // image comes for as few bytes, or there is no path. NOT_FOUND for an artifact that is not known.
  virtual absl::StatusOr<std::vector<v1::Difference>> FindDifferences(
      const RequestContext& context, std::string_view artifact_id, const std::vector<std::string>& held) = 0;
  // Whether any node that is there has a ready replica of it, or an origin.
  virtual absl::StatusOr<bool> HasCopy(const RequestContext& context, std::string_view artifact_id) = 0;
  // Tried once. `manifest`, where it is not null, gets the artifact's manifest by the same call: canonical
  // bytes that are not yet verified, or none where they did not come whole; FetchManifest then says why. Code
  // that wants to know what a key means asks KnownKeys.
  virtual absl::StatusOr<v1::Key> ResolveKey(const RequestContext& context, const std::string& key,
                                             std::string* manifest) = 0;
  // The nodes of these names that it knows. REQUIRES: one at least.
  virtual absl::StatusOr<std::vector<v1::Node>> FindNodes(const RequestContext& context,
                                                          const std::vector<std::string>& names) = 0;

  virtual absl::StatusOr<v1::RequestReplicaTransportResponse> RequestReplicaTransport(
      const RequestContext& context, const v1::RequestReplicaTransportRequest& request) = 0;
  virtual absl::Status CompleteReplicaTransport(const RequestContext& context,
                                                const v1::CompleteReplicaTransportRequest& request) = 0;
  // Tried once.
  virtual absl::StatusOr<v1::JoinBroadcastResponse> JoinBroadcast(
      const RequestContext& context, const v1::JoinBroadcastRequest& request) = 0;

  // How long calls have been in vain, at most since the last that was answered; zero while it answers.
  virtual absl::Duration away_for() const = 0;
  // For calls of it that others make on the same channel: notes whether it answered, and returns their error
  // as those of the calls above are. REQUIRES: the call began at `began`.
  virtual absl::Status Noted(absl::Status status, SteadyTime began, Timeout timeout) = 0;
  // Of the answers to all calls of this global store, also to those that are not made here.
  virtual rpc::EpochFence& fence() = 0;
};

// A restart of the global store takes less: until then it is worth waiting for.
inline constexpr absl::Duration kShortAbsence = absl::Seconds(2);
// The same of several that stand by for each other: the next one leads within some three seconds of a lease
// of two (global_store/metadata/etcd).
inline constexpr absl::Duration kTakeOver = absl::Seconds(8);

// Errors name the channel's address. While the global store is away, the calls that register the node and
// report it have its names looked up again.
std::unique_ptr<GlobalStoreClient> MakeGlobalStoreClient(std::shared_ptr<GlobalStoreChannel> channel);

}  // namespace tensorcast::daemon
