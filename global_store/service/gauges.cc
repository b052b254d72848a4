#include "global_store/service/gauges.h"

#include <utility>

#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::global_store {
namespace {

namespace metrics = otel::metrics;

DirectoryCounts Counts(Coordinator& coordinator) {
  return coordinator.WithDirectory([](const Directory& directory, SteadyTime) { return directory.counts(); });
}

// A lost node is dropped from the directory, so it is only missing here.
void ObserveNodes(Coordinator& coordinator, otel::Gauge<1>::Observer& observer) {
  const auto [nodes, draining] = coordinator.WithDirectory([](const Directory& directory, SteadyTime) {
    return std::pair(directory.counts().nodes, directory.membership().CountDraining());
  });
  observer.Observe(static_cast<double>(nodes - draining), {"alive"});
  observer.Observe(static_cast<double>(draining), {"draining"});
}

void ObserveReplicas(Coordinator& coordinator, otel::Gauge<2>::Observer& observer) {
  const auto counts = coordinator.WithDirectory(
      [](const Directory& directory, SteadyTime) { return directory.inventory().CountByState(); });
  for (const auto& [kind, count] : counts) {
    observer.Observe(static_cast<double>(count),
                     {LocationKindName(kind.first), ReplicaStateName(kind.second)});
  }
}

}  // namespace

std::vector<otel::GaugeRegistration> ObserveCoordinator(Coordinator* coordinator) {
  std::vector<otel::GaugeRegistration> gauges;
  const auto count = [&](const otel::Gauge<0>& gauge, uint64_t DirectoryCounts::* member) {
    gauges.push_back(gauge.Observe([coordinator, member](otel::Gauge<0>::Observer& observer) {
      observer.Observe(static_cast<double>(Counts(*coordinator).*member));
    }));
  };
  count(metrics::kGlobalArtifacts, &DirectoryCounts::artifacts);
  count(metrics::kGlobalKeys, &DirectoryCounts::keys);
  count(metrics::kGlobalGrantsActive, &DirectoryCounts::active_grants);
  gauges.push_back(metrics::kGlobalNodes.Observe(
      [coordinator](otel::Gauge<1>::Observer& observer) { ObserveNodes(*coordinator, observer); }));
  gauges.push_back(metrics::kGlobalReplicas.Observe(
      [coordinator](otel::Gauge<2>::Observer& observer) { ObserveReplicas(*coordinator, observer); }));
  return gauges;
}

}  // namespace tensorcast::global_store
