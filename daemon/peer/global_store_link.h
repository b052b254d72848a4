// This node's standing relation with the global store: it registers, reports what the node holds, sends
// heartbeats and passes on what the global store asks for in return. One thread does all of it, so reports
// keep their order.
//
// When the global store is away everything goes on but what needs it; when it is back (or another one is),
// the node registers again and sends its whole inventory. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/engine/replica.h"
#include "daemon/peer/global_store_client.h"
#include "daemon/peer/replica_feed.h"
#include "rpc/grant_token/grant_token.h"

namespace tensorcast::daemon {

// What the link needs of the node that it stands for. Called on the link's thread with no lock held.
class LinkedNode {
 public:
  virtual ~LinkedNode() = default;
  virtual std::vector<ReplicaInfo> Inventory() = 0;
  virtual absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) = 0;
  // Pools and active transports.
  virtual void FillHeartbeat(v1::HeartbeatRequest* heartbeat) = 0;
  // The global store answered a heartbeat: what it did not revoke goes on.
  virtual void OnHeartbeat(const v1::HeartbeatResponse& response) = 0;
};

class GlobalStoreLink {
 public:
  struct Options {
    v1::Node node;                           // as registered
    GlobalStoreClient* client = nullptr;     // must outlive the link
    ReplicaFeed* feed = nullptr;             // must outlive the link
    const DeviceRuntime* devices = nullptr;  // may be null; must outlive the link
    absl::Duration call_timeout = absl::Seconds(5);
    absl::Duration retry_least = absl::Milliseconds(100);  // after a failed call, doubled up to retry_most
    absl::Duration retry_most = absl::Seconds(2);
  };

  explicit GlobalStoreLink(Options options);
  ~GlobalStoreLink();  // stops it

  // Starts the thread. `node` must outlive the thread; others reach this node's service at `grpc_address`.
  void Start(LinkedNode* node, std::string grpc_address);
  // Ends the thread; with `goodbye` the global store is told that this node holds nothing any more.
  // Idempotent.
  void Stop(bool goodbye);

  void SetIdentity(v1::NodeIdentity* out) const;
  const std::string& node_id() const { return options_.node.node_id(); }

  // The key of grant tokens; empty before the first registration.
  rpc::GrantKey grant_key() const;
  // The last call reached it.
  bool reachable() const;
  // UNAVAILABLE with the last error when the node is not registered by then.
  absl::Status WaitRegistered(absl::Time deadline);
  // Sends a heartbeat now, which registers again where the global store no longer knows this node, and waits
  // for it. UNAVAILABLE when it was not answered by then.
  absl::Status CheckIn(absl::Time deadline);
  // Blocks until what the feed held at this call was sent, or the deadline. For callers that need it counted.
  absl::Status Flush(absl::Time deadline);

 private:
  void Loop();
  void Wake();
  // One round: whatever is due. An error makes the loop back off.
  absl::Status Step();
  absl::Status Register();
  absl::Status SendInventory();
  absl::Status SendChanges();
  absl::Status SendHeartbeat();
  void Republish(const std::vector<ReplicaInfo>& inventory, const v1::ReconcileInventoryResponse& response);
  void NoteOutcome(const absl::Status& status);
  bool HeartbeatDue();
  bool WaitForWork(absl::Time until);  // false: stopping

  Options options_;  // does not change once the thread runs
  LinkedNode* node_ = nullptr;

  // Only the thread uses these.
  uint64_t sequence_ = 0;
  uint64_t store_epoch_ = 0;
  bool inventory_due_ = true;
  absl::Time next_heartbeat_;
  absl::Duration heartbeat_interval_ = absl::Seconds(1);

  mutable absl::Mutex mutex_;
  rpc::GrantKey grant_key_ ABSL_GUARDED_BY(mutex_);
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  bool reachable_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool heartbeat_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;  // finished without an error
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tensorcast::daemon
