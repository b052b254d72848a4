#include "daemon/app/node_gauges.h"

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::daemon {
namespace {

namespace metrics = otel::metrics;
using PoolValue = double (*)(const PoolStats&);

// One value of every pool of the node; `device` is "" for host memory.
void ObservePools(const NodeParts& parts, PoolValue value, otel::Gauge<2>::Observer& observer) {
  observer.Observe(value(parts.pool->stats()), {"cpu", ""});
  for (const DeviceInfo& device : parts.devices->devices()) {
    const std::string ordinal = absl::StrCat(device.ordinal);
    observer.Observe(value(parts.engine->device_pool_stats(device.ordinal)), {"gpu", ordinal});
  }
}

void ObserveLeases(const NodeParts& parts, otel::Gauge<2>::Observer& observer) {
  uint64_t leases[3] = {};
  for (const ReplicaInfo& replica : parts.engine->ListReplicas()) {
    leases[static_cast<size_t>(replica.location.kind)] += replica.leases;
  }
  observer.Observe(static_cast<double>(leases[static_cast<size_t>(LocationKind::kGpu)]), {"any", "gpu"});
  observer.Observe(static_cast<double>(leases[static_cast<size_t>(LocationKind::kCpu)]), {"any", "cpu"});
  observer.Observe(static_cast<double>(leases[static_cast<size_t>(LocationKind::kDisk)]), {"any", "disk"});
}

}  // namespace

NodeGauges::NodeGauges(const NodeParts* parts) {
  const auto pools = [this, parts](const otel::Gauge<2>& gauge, PoolValue value) {
    registrations_.push_back(gauge.Observe(
        [parts, value](otel::Gauge<2>::Observer& observer) { ObservePools(*parts, value, observer); }));
  };
  pools(metrics::kPoolCapacityBytes,
        [](const PoolStats& stats) { return static_cast<double>(stats.capacity_bytes); });
  pools(metrics::kPoolUsedBytes,
        [](const PoolStats& stats) { return static_cast<double>(stats.used_bytes); });
  pools(metrics::kPoolHighWaterBytes,
        [](const PoolStats& stats) { return static_cast<double>(stats.high_water_bytes); });
  pools(metrics::kPoolAllocationFailures,
        [](const PoolStats& stats) { return static_cast<double>(stats.failed_allocations); });
  registrations_.push_back(metrics::kLeasesActive.Observe(
      [parts](otel::Gauge<2>::Observer& observer) { ObserveLeases(*parts, observer); }));
  registrations_.push_back(metrics::kSessionsActive.Observe([parts](otel::Gauge<1>::Observer& observer) {
    observer.Observe(parts->handles->connections(), {"any"});
  }));
  registrations_.push_back(metrics::kTransfersActive.Observe(
      [parts](otel::Gauge<0>::Observer& observer) { observer.Observe(parts->engine->active_ingests()); }));
}

}  // namespace tensorcast::daemon
