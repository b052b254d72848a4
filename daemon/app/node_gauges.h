// The node's gauges, read when metrics are collected: pools, leases, sessions, transfers, the disk. The
// gauges are registered while this object lives.
#pragma once

#include <vector>

#include "core/device/device_runtime.h"
#include "core/disk/artifact_store.h"
#include "core/engine/engine.h"
#include "core/handles/handle_server.h"
#include "core/memory/host_pool.h"
#include "daemon/serving/serve_registry.h"
#include "otel/api/metrics.h"

namespace tensorcast::daemon {

class NodeGauges {
 public:
  struct Options {
    StoreEngine* engine = nullptr;  // all must outlive the gauges
    const HostPool* pool = nullptr;
    const DeviceRuntime* devices = nullptr;
    const ArtifactStore* artifact_store = nullptr;  // null: no disk tier
    const HandleServer* handles = nullptr;
    const ServeRegistry* servings = nullptr;
  };

  explicit NodeGauges(const Options& options);
  NodeGauges(const NodeGauges&) = delete;
  NodeGauges& operator=(const NodeGauges&) = delete;

 private:
  void ObservePools();
  void ObserveDevices();
  void ObserveSessions();
  void ObserveTransfers();
  void ObserveDisk();

  const Options options_;

  std::vector<otel::GaugeRegistration> registrations_;
};

}  // namespace tensorcast::daemon
