// How this node describes itself: to the global store with each heartbeat, and to people. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "core/disk/artifact_store.h"
#include "core/engine/engine.h"
#include "core/handles/handle_server.h"
#include "core/memory/host_pool.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/keeper/kept_pool.h"
#include "daemon/node/local_node.h"
#include "daemon/service/broadcast_groups.h"
#include "daemon/service/damaged_replicas.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/telemetry/conservation.h"
#include "daemon/telemetry/reports.h"
#include "proto/daemon.pb.h"
#include "rpc/endpoint_access.h"

namespace tensorcast::rpc {
class Credentials;
}  // namespace tensorcast::rpc

namespace tensorcast::daemon {

class StatusReporter {
 public:
  struct Options {
    const LocalNode* node = nullptr;      // all must outlive the reporter
    std::string global_store_label = {};  // the store's address, or "embedded"
    const GlobalStoreLink* link = nullptr;
    StoreEngine* engine = nullptr;
    const HostPool* pool = nullptr;
    const DeviceRuntime* devices = nullptr;
    const ArtifactStore* artifact_store = nullptr;  // null: no disk tier
    const HandleServer* handles = nullptr;
    const ServeRegistry* servings = nullptr;
    const TransferLog* transfers = nullptr;         // ended transfers to this node
    const Conservation* conservation = nullptr;     // null: nothing is compared
    const BroadcastGroups* groups = nullptr;        // broadcasts between the GPUs of nodes
    const DamagedReplicas* damaged = nullptr;       // null: damage is not searched for
    const KeptPool* kept = nullptr;                 // null: nothing keeps the pool
    const rpc::Credentials* credentials = nullptr;  // null: host:port is unencrypted
    uint64_t send_limit = 0;                        // of lane tcp, in bytes per second; 0: no limit
    uint64_t receive_limit = 0;
    std::string software_version = {};
    std::string proc = "/proc";  // tests pass folders of their own
    std::string sysfs = "/sys";
  };

  explicit StatusReporter(Options options) : options_(std::move(options)) {}

  // Sets the endpoints that the daemon listens on, known once it listens.
  void SetEndpoints(std::vector<rpc::EndpointAccess> endpoints);

  // The host pool first, then one pool per device. Pinned bytes are those that cannot be evicted.
  void FillPools(google::protobuf::RepeatedPtrField<v1::Pool>* out) const;
  // Adds the ordinals of devices that take no replicas.
  void FillUnhealthyDevices(google::protobuf::RepeatedField<int32_t>* out) const;
  v1::GetStatusResponse Report() const;
  // The transfer with this id to this node; nullopt if this node does not remember it.
  std::optional<v1::TransferHop> FindTransfer(const std::string& transfer_id) const;
  // Describes a replica of this node for another node that read it.
  v1::TransferHop DescribeHop(const v1::DescribeHopRequest& request) const;

 private:
  void AddPool(Location location, const PoolStats& stats,
               google::protobuf::RepeatedPtrField<v1::Pool>* out) const;
  void FillDevices(google::protobuf::RepeatedPtrField<v1::DeviceStatus>* out) const;
  void FillTransfers(v1::GetStatusResponse* out) const;
  void FillSecurity(v1::Security* out) const;
  void FillHost(v1::HostFacts* out) const;
  // A hop with the newest of this node's transfers for which `wanted` is true, if there is one.
  v1::TransferHop HopOf(absl::FunctionRef<bool(const TransferReport&)> wanted) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  std::vector<rpc::EndpointAccess> endpoints_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
