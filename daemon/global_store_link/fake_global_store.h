// A global store for tests: answers as a test sets it up, and records its calls. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "daemon/global_store_link/global_store_client.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {

class FakeGlobalStore : public GlobalStoreClient {
 public:
  // Runs `change` with the lock held, to change the answers or to read the recorded calls.
  template <class Change>
  auto With(Change change) {
    absl::MutexLock lock(&mutex_);
    return change(*this);
  }
  // Blocks until `condition` holds; false after 20 seconds.
  bool Await(std::function<bool(FakeGlobalStore&)> condition) {
    absl::MutexLock lock(&mutex_);
    const auto met = [&] { return condition(*this); };
    return mutex_.AwaitWithTimeout(absl::Condition(&met), absl::Seconds(20));
  }

  // The answers.
  absl::Status down;  // error of every call
  uint64_t epoch = 1;
  bool knows_node = false;
  absl::Duration heartbeat_interval = absl::Hours(1);
  absl::Duration node_ttl = absl::Hours(1);
  v1::HeartbeatResponse heartbeat_response;
  std::vector<std::string> unknown_artifacts;
  bool updates_want_inventory = false;
  std::vector<v1::RequestReplicaTransportResponse> offers;  // one for each request; then none
  bool grants_eviction = true;
  int unknown_evictions = 0;  // the number of eviction requests to answer with NOT_FOUND
  std::map<std::string, v1::Key> keys;
  std::map<std::string, v1::Node> nodes;                      // by name
  uint64_t key_revision = 1;                                  // for artifacts that are published with a key
  std::map<std::string, std::string, std::less<>> manifests;  // artifact id -> canonical bytes
  std::map<std::string, std::vector<v1::Difference>, std::less<>> differences;  // paths by target
  std::vector<v1::Replica> replicas;        // the ready ones of each artifact
  std::function<void()> on_manifest_asked;  // runs with the lock held; may be empty

  std::string cluster_id = "11111111-2222-4333-8444-555555555555";
  std::set<std::string> deleted;  // calls about these artifacts get NOT_FOUND

  // The recorded calls.
  std::vector<v1::RegisterNodeRequest> registrations;
  std::vector<SteadyTime> refused;  // times of the registrations refused while `down`
  int heartbeats = 0;
  v1::HeartbeatRequest last_heartbeat;
  std::vector<std::vector<v1::ReconcileInventoryRequest>> inventories;
  std::vector<v1::UpdateReplicasRequest> updates;
  std::vector<v1::RequestEvictionRequest> evictions;
  std::string published_for;  // the caller of the last publication
  std::vector<std::pair<std::string, v1::PublishArtifactRequest>> published;
  std::vector<std::string> published_differences;    // ids of the differences in publications
  std::vector<std::vector<std::string>> held_asked;  // `held` of each FindDifferences
  std::vector<v1::RequestReplicaTransportRequest> asked;
  std::vector<v1::CompleteReplicaTransportRequest> completed;
  std::vector<v1::JoinBroadcastRequest> joined;

  absl::StatusOr<v1::RegisterNodeResponse> RegisterNode(const RequestContext&,
                                                        const v1::RegisterNodeRequest& request) override {
    absl::MutexLock lock(&mutex_);
    if (!down.ok()) {
      refused.push_back(SteadyNow());
      return down;
    }
    registrations.push_back(request);
    knows_node = true;
    v1::RegisterNodeResponse response;
    response.set_grant_key(std::string(32, 'k'));
    response.set_store_epoch(epoch);
    response.set_cluster_id(cluster_id);
    *response.mutable_heartbeat_interval() = rpc::ToProto(heartbeat_interval);
    *response.mutable_node_ttl() = rpc::ToProto(node_ttl);
    return response;
  }

  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const RequestContext&,
                                                  const v1::HeartbeatRequest& request) override {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = Check(); !status.ok()) return status;
    ++heartbeats;
    last_heartbeat = request;
    v1::HeartbeatResponse response = heartbeat_response;
    *response.mutable_heartbeat_interval() = rpc::ToProto(heartbeat_interval);
    *response.mutable_node_ttl() = rpc::ToProto(node_ttl);
    response.set_store_epoch(epoch);
    return response;
  }

  absl::StatusOr<v1::ReconcileInventoryResponse> ReconcileInventory(
      const RequestContext&, const std::vector<v1::ReconcileInventoryRequest>& messages) override {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = Check(); !status.ok()) return status;
    inventories.push_back(messages);
    v1::ReconcileInventoryResponse response;
    response.mutable_unknown_artifacts()->Assign(unknown_artifacts.begin(), unknown_artifacts.end());
    unknown_artifacts.clear();
    return response;
  }

  absl::StatusOr<v1::UpdateReplicasResponse> UpdateReplicas(
      const RequestContext&, const v1::UpdateReplicasRequest& request) override {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = Check(); !status.ok()) return status;
    updates.push_back(request);
    v1::UpdateReplicasResponse response;
    response.set_inventory_wanted(std::exchange(updates_want_inventory, false));
    return response;
  }

  absl::StatusOr<v1::RequestEvictionResponse> RequestEviction(
      const RequestContext&, const v1::RequestEvictionRequest& request) override {
    absl::MutexLock lock(&mutex_);
    if (!down.ok()) return down;
    evictions.push_back(request);
    if (unknown_evictions > 0) {
      --unknown_evictions;
      return absl::NotFoundError("no such replica yet");
    }
    v1::RequestEvictionResponse response;
    response.set_granted(grants_eviction);
    response.set_reason("it is the last copy");
    return response;
  }

  absl::Status DrainNode(const RequestContext&, const v1::DrainNodeRequest&) override {
    return absl::OkStatus();
  }

  absl::StatusOr<v1::PublishArtifactResponse> PublishArtifact(const RequestContext&, const Manifest& manifest,
                                                              const v1::PublishArtifactRequest& first,
                                                              const std::string& asking) override {
    absl::MutexLock lock(&mutex_);
    return Publish(manifest, first, asking);
  }

  absl::StatusOr<v1::PublishArtifactResponse> PublishWithDifference(const RequestContext&,
                                                                    const Manifest& manifest,
                                                                    const Manifest& difference,
                                                                    const v1::PublishArtifactRequest& first,
                                                                    const std::string& asking) override {
    absl::MutexLock lock(&mutex_);
    published_differences.push_back(difference.id());
    return Publish(manifest, first, asking);
  }

  absl::StatusOr<FoundDifferences> FindDifferences(const RequestContext&, std::string_view artifact_id,
                                                   const std::vector<std::string>& held,
                                                   std::string* manifest) override {
    absl::MutexLock lock(&mutex_);
    if (!down.ok()) return down;
    const auto of_target = manifests.find(artifact_id);
    if (manifest != nullptr) {
      if (of_target == manifests.end()) return absl::NotFoundError("no such artifact");
      *manifest = of_target->second;
    }
    held_asked.push_back(held);
    FoundDifferences found;
    const auto path = differences.find(artifact_id);
    if (path == differences.end()) return found;
    found.path = path->second;
    for (const v1::Difference& difference : found.path) {
      const auto bytes = manifests.find(difference.artifact_id());
      if (bytes == manifests.end()) break;
      found.manifests.push_back(bytes->second);
    }
    return found;
  }

  absl::StatusOr<Copies> FindCopies(const RequestContext&, std::string_view artifact_id) override {
    absl::MutexLock lock(&mutex_);
    if (!down.ok()) return down;
    if (deleted.contains(std::string(artifact_id))) return absl::NotFoundError("no such artifact");
    return Copies{.replicas = replicas, .has_origin = true};
  }
  absl::StatusOr<std::string> FetchManifest(const RequestContext&, std::string_view artifact_id) override {
    absl::MutexLock lock(&mutex_);
    if (!down.ok()) return down;
    if (on_manifest_asked) on_manifest_asked();
    const auto found = manifests.find(artifact_id);
    if (found == manifests.end()) return absl::NotFoundError("no such artifact");
    return found->second;
  }
  absl::StatusOr<v1::Key> ResolveKey(const RequestContext&, const std::string& key,
                                     std::string* manifest) override {
    absl::MutexLock lock(&mutex_);
    if (!down.ok()) return down;
    const auto found = keys.find(key);
    if (found == keys.end()) return absl::NotFoundError("no such key");
    const std::string& artifact_id = found->second.artifact_id();
    if (manifest != nullptr && manifests.contains(artifact_id)) {
      *manifest = manifests.find(artifact_id)->second;
    }
    return found->second;
  }

  absl::StatusOr<std::vector<v1::Node>> FindNodes(const RequestContext&,
                                                  const std::vector<std::string>& names) override {
    absl::MutexLock lock(&mutex_);
    if (!down.ok()) return down;
    std::vector<v1::Node> found;
    for (const std::string& name : names) {
      const auto node = nodes.find(name);
      if (node != nodes.end()) found.push_back(node->second);
    }
    return found;
  }

  absl::Duration away_for() const override { return absl::ZeroDuration(); }
  absl::Status Noted(absl::Status status, SteadyTime, Timeout) override { return status; }
  rpc::EpochFence& fence() override { return fence_; }

  absl::StatusOr<v1::RequestReplicaTransportResponse> RequestReplicaTransport(
      const RequestContext&, const v1::RequestReplicaTransportRequest& request) override {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = Check(); !status.ok()) return status;
    asked.push_back(request);
    if (offers.empty()) return v1::RequestReplicaTransportResponse();
    v1::RequestReplicaTransportResponse offer = std::move(offers.front());
    offers.erase(offers.begin());
    return offer;
  }

  absl::Status CompleteReplicaTransport(const RequestContext&,
                                        const v1::CompleteReplicaTransportRequest& request) override {
    absl::MutexLock lock(&mutex_);
    completed.push_back(request);
    return down;
  }

  absl::StatusOr<v1::JoinBroadcastResponse> JoinBroadcast(const RequestContext&,
                                                          const v1::JoinBroadcastRequest& request) override {
    absl::MutexLock lock(&mutex_);
    if (!down.ok()) return down;
    joined.push_back(request);
    return absl::NotFoundError("no such group");
  }

 private:
  absl::StatusOr<v1::PublishArtifactResponse> Publish(const Manifest& manifest,
                                                      const v1::PublishArtifactRequest& first,
                                                      const std::string& asking)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    published.emplace_back(manifest.id(), first);
    published_for = asking;
    if (!down.ok()) return down;
    v1::PublishArtifactResponse response;
    response.set_artifact_id(manifest.id());
    response.set_key_revision(first.key().empty() ? 0 : key_revision);
    response.set_files_id(first.files_id());
    return response;
  }

  absl::Status Check() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !down.ok() || knows_node ? down : absl::NotFoundError("the node is not registered");
  }

  absl::Mutex mutex_;
  rpc::EpochFence fence_;
};

}  // namespace tensorcast::daemon
