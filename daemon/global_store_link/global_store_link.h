// Keeps this node registered with the global store: reports the node's replicas, sends heartbeats, and passes
// on the responses. One thread does all this. Thread-safe.
//
// When the global store is back, or another store leads, the node registers again and sends its whole
// inventory.
//
// A newer process with a copy of the state directory may register under the same node id and replace this
// node. The link then tries to register again for about twice the global store's node_ttl. If the other
// process stays alive, the link gives up (Options::on_replaced).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/linked_node.h"
#include "daemon/global_store_link/replica_feed.h"
#include "rpc/grant_token/grant_token.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {

class GlobalStoreLink {
 public:
  struct Options {
    v1::Node node;                        // the description to register
    GlobalStoreClient* client = nullptr;  // must outlive the link
    ReplicaFeed* feed = nullptr;          // must outlive the link
    absl::Duration call_timeout = absl::Seconds(5);
    // The pause after a failed call, with jitter.
    rpc::Backoff::Options backoff = {.initial = absl::Milliseconds(100), .max = absl::Seconds(1)};
    // Called once, on the link's thread, when the link gives up because the node was replaced. May be empty.
    std::function<void(const absl::Status&)> on_replaced;
  };

  explicit GlobalStoreLink(Options options);
  ~GlobalStoreLink();  // calls Stop(false)

  // Starts the thread. `node` must outlive the thread. Other nodes reach this node's service at
  // `grpc_address`. RESOURCE_EXHAUSTED if no thread can be started.
  absl::Status Start(LinkedNode* node, std::string grpc_address);
  // Ends the thread, and with `goodbye` then reports to the global store that this node has no replicas.
  // Idempotent.
  void Stop(bool goodbye);

  // This node's identity in calls to the global store.
  v1::NodeIdentity identity() const;
  const std::string& node_id() const { return options_.node.node_id(); }
  const std::string& host_id() const { return options_.node.host_id(); }

  // The key of grant tokens; empty before the first registration.
  rpc::GrantKey grant_key() const;
  // The id in the global store's metadata; empty before the first registration.
  std::string cluster_id() const;
  // OK while the global store accepts this node's reports; otherwise the reason why it does not.
  absl::Status standing() const;
  // FAILED_PRECONDITION while the global store reports that another daemon took this node's place; the error
  // names that daemon.
  absl::Status CheckNotReplaced() const;
  // Blocks until the node is registered. UNAVAILABLE, with the last error, at the deadline or when the link
  // stops.
  absl::Status WaitRegistered(SteadyTime deadline);
  // Makes the link send a heartbeat now. Does not wait.
  void HeartbeatSoon();
  // Sends a heartbeat now and waits for its answer. Registers again if the global store no longer knows this
  // node. UNAVAILABLE when there is no answer by `deadline`. If another daemon took this node's place, fails
  // at once with the error of CheckNotReplaced.
  absl::Status CheckIn(SteadyTime deadline);
  // Blocks until the global store has the changes that are in the feed now. UNAVAILABLE at the deadline,
  // CANCELLED when the link stops, and the error of CheckNotReplaced when the node was replaced.
  absl::Status Flush(SteadyTime deadline);

 private:
  void Loop();
  void Wake();
  // One round: all work that is due. An error makes the loop back off.
  absl::Status Step();
  absl::Status Register();
  // The result of Register when `why` says that the node was replaced.
  absl::Status Replaced(const absl::Status& why);
  void SetReplaced(absl::Status replaced);
  absl::Duration Patience() const { return 2 * (node_ttl_ + options_.backoff.max); }
  void GiveUp();
  absl::Status SendInventory();
  absl::Status SendChanges();
  absl::Status SendHeartbeat();
  // The digest of the node's replicas; nullopt: the link has not reported all changes yet.
  std::optional<uint64_t> InventoryDigest();
  // Adopts the heartbeat interval and node_ttl of an answer.
  void Obey(const google::protobuf::Duration& heartbeat_interval, const google::protobuf::Duration& node_ttl);
  // `final`: no immediate retry follows.
  void NoteOutcome(const absl::Status& status, bool final);
  bool HeartbeatDue();
  bool WaitForWork(SteadyTime until);  // false: stopping

  Options options_;  // does not change once the thread runs
  LinkedNode* node_ = nullptr;

  // Only the link's thread uses the next members.
  uint64_t sequence_ = 0;
  uint64_t store_epoch_ = 0;
  bool inventory_due_ = true;
  SteadyTime next_heartbeat_;
  absl::Duration heartbeat_interval_ = absl::Seconds(1);
  absl::Duration node_ttl_;  // how long the global store waits for a heartbeat
  SteadyTime replaced_since_ = SteadyTime::InfiniteFuture();
  std::string replaced_by_;                               // the global store's text
  absl::StatusCode logged_ = absl::StatusCode::kUnknown;  // the last outcome that was logged

  mutable absl::Mutex mutex_;
  rpc::GrantKey grant_key_ ABSL_GUARDED_BY(mutex_);
  std::string cluster_id_ ABSL_GUARDED_BY(mutex_);
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool heartbeat_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;  // rounds that finished without an error
  absl::Status standing_ ABSL_GUARDED_BY(mutex_);
  absl::Status replaced_ ABSL_GUARDED_BY(mutex_);  // the result of CheckNotReplaced
  std::thread thread_;
};

}  // namespace tensorcast::daemon
