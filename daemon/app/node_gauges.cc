#include "daemon/app/node_gauges.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::daemon {
namespace {

namespace metrics = otel::metrics;
using PoolValue = double (*)(const PoolStats&);
using ReplicaValue = double (*)(const ReplicaBytes&);
using LeasesByLocation = std::map<LocationKind, int>;

// One value of every pool of the node; `device` is "" for host memory.
void ReportPools(const NodeGauges::Options& parts, PoolValue value, otel::Gauge<2>::Observer& observer) {
  observer.Observe(value(parts.pool->stats()), {"cpu", ""});
  for (const DeviceInfo& device : parts.devices->devices()) {
    const std::string ordinal = absl::StrCat(device.ordinal);
    observer.Observe(value(parts.engine->device_pool_stats(device.ordinal)), {"gpu", ordinal});
  }
}

// One of what its replicas take.
void ReportReplicas(const NodeGauges::Options& parts, ReplicaValue value,
                    otel::Gauge<2>::Observer& observer) {
  observer.Observe(value(parts.engine->replica_bytes({LocationKind::kCpu})), {"cpu", ""});
  for (const DeviceInfo& device : parts.devices->devices()) {
    const Location location{LocationKind::kGpu, device.ordinal};
    observer.Observe(value(parts.engine->replica_bytes(location)), {"gpu", absl::StrCat(device.ordinal)});
  }
}

// From the handle server's order of memories.
LeasesByLocation ByLocation(const std::array<int, 3>& counts) {
  return {{LocationKind::kCpu, counts[0]}, {LocationKind::kGpu, counts[1]}, {LocationKind::kDisk, counts[2]}};
}

// Each lease is counted by its holder. What is left is held by ingests of this node: those that end,
// and those that read another replica. (The counts are taken one after another, so a lease that moves in
// between may be missed.)
void ReportLeases(const NodeGauges::Options& parts, otel::Gauge<2>::Observer& observer) {
  const HandleCounts handles = parts.handles->counts();
  const LeasesByLocation clients = ByLocation(handles.client_leases);
  const LeasesByLocation tickets = ByLocation(handles.tickets);
  LeasesByLocation pulls = ByLocation(handles.daemon_leases);
  for (const auto& [location, count] : parts.servings->CountLeases()) pulls[location] += count;
  LeasesByLocation all;
  for (const ReplicaInfo& replica : parts.engine->ListReplicas()) {
    all[replica.location.kind] += static_cast<int>(replica.leases);
  }
  for (const LocationKind location : {LocationKind::kGpu, LocationKind::kCpu, LocationKind::kDisk}) {
    const std::string_view where = LocationKindName(location);
    const int known = clients.at(location) + tickets.at(location) + pulls.at(location);
    observer.Observe(clients.at(location), {"client", where});
    observer.Observe(tickets.at(location), {"ticket", where});
    observer.Observe(pulls.at(location), {"pull", where});
    observer.Observe(std::max(0, all[location] - known), {"ingest", where});
  }
}

}  // namespace

// Gauges are read by the exporter's thread. Each holds `this`, so the registrations end with this object.
NodeGauges::NodeGauges(const Options& options) : options_(options) {
  ObservePools();
  ObserveDevices();
  ObserveSessions();
  ObserveTransfers();
  if (options_.artifact_store != nullptr) ObserveDisk();
}

void NodeGauges::ObservePools() {
  const auto pools = [this](const otel::Gauge<2>& gauge, PoolValue value) {
    registrations_.push_back(gauge.Observe(
        [this, value](otel::Gauge<2>::Observer& observer) { ReportPools(options_, value, observer); }));
  };
  pools(metrics::kPoolCapacityBytes,
        [](const PoolStats& stats) { return static_cast<double>(stats.capacity_bytes); });
  pools(metrics::kPoolUsedBytes,
        [](const PoolStats& stats) { return static_cast<double>(stats.used_bytes); });
  pools(metrics::kPoolHighWaterBytes,
        [](const PoolStats& stats) { return static_cast<double>(stats.high_water_bytes); });
  pools(metrics::kPoolAllocationFailures,
        [](const PoolStats& stats) { return static_cast<double>(stats.failed_allocations); });
  const auto replicas = [this](const otel::Gauge<2>& gauge, ReplicaValue value) {
    registrations_.push_back(gauge.Observe(
        [this, value](otel::Gauge<2>::Observer& observer) { ReportReplicas(options_, value, observer); }));
  };
  replicas(metrics::kPoolPinnedBytes,
           [](const ReplicaBytes& bytes) { return static_cast<double>(bytes.held); });
  replicas(metrics::kPoolPartialBytes,
           [](const ReplicaBytes& bytes) { return static_cast<double>(bytes.partial); });
  replicas(metrics::kPoolPartialReplicas,
           [](const ReplicaBytes& bytes) { return static_cast<double>(bytes.partial_replicas); });
}

void NodeGauges::ObserveDevices() {
  registrations_.push_back(metrics::kDeviceUnhealthy.Observe([this](otel::Gauge<1>::Observer& observer) {
    for (const DeviceInfo& device : options_.devices->devices()) {
      const bool healthy = options_.devices->CheckHealth(device.ordinal).ok();
      observer.Observe(healthy ? 0 : 1, {absl::StrCat(device.ordinal)});
    }
  }));
}

void NodeGauges::ObserveSessions() {
  registrations_.push_back(metrics::kLeasesActive.Observe(
      [this](otel::Gauge<2>::Observer& observer) { ReportLeases(options_, observer); }));
  registrations_.push_back(metrics::kSessionsActive.Observe([this](otel::Gauge<1>::Observer& observer) {
    const HandleCounts handles = options_.handles->counts();
    observer.Observe(handles.client_connections, {"client"});
    observer.Observe(handles.daemon_connections, {"daemon"});
  }));
}

void NodeGauges::ObserveTransfers() {
  registrations_.push_back(metrics::kTransferQueueLength.Observe(
      [this](otel::Gauge<0>::Observer& observer) { observer.Observe(options_.engine->queued_ingests()); }));
  registrations_.push_back(metrics::kTransfersActive.Observe([this](otel::Gauge<0>::Observer& observer) {
    // The engine counts ingests that wait in its queue among the active ones.
    const int queued = options_.engine->queued_ingests();
    observer.Observe(std::max(0, options_.engine->active_ingests() - queued));
  }));
  registrations_.push_back(metrics::kP2pSources.Observe(
      [this](otel::Gauge<0>::Observer& observer) { observer.Observe(options_.engine->peer_sources()); }));
}

void NodeGauges::ObserveDisk() {
  const ArtifactStore* const store = options_.artifact_store;
  registrations_.push_back(metrics::kDiskUsedBytes.Observe([store](otel::Gauge<0>::Observer& observer) {
    observer.Observe(static_cast<double>(store->Usage().used_bytes));
  }));
  registrations_.push_back(metrics::kDiskDamagedFiles.Observe([store](otel::Gauge<0>::Observer& observer) {
    observer.Observe(static_cast<double>(store->Damaged().size()));
  }));
  registrations_.push_back(metrics::kDiskFreeBytes.Observe([store](otel::Gauge<0>::Observer& observer) {
    observer.Observe(static_cast<double>(store->Usage().free_bytes));
  }));
}

}  // namespace tensorcast::daemon
