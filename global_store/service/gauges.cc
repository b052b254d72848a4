#include "global_store/service/gauges.h"

#include <array>
#include <tuple>
#include <vector>

#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::global_store {
namespace {

namespace metrics = otel::metrics;

// The reader of the metrics calls each gauge from its own thread. Every gauge visits the directory for
// itself, for a moment under its lock.
DirectoryCounts Counts(Coordinator& coordinator) {
  return coordinator.WithDirectory([](const Directory& directory, SteadyTime) { return directory.counts(); });
}

// A lost node is dropped from the directory; it is counted while what it held is remembered.
void ObserveNodes(Coordinator& coordinator, otel::Gauge<1>::Observer& observer) {
  const auto [nodes, draining, lost] = coordinator.WithDirectory([](const Directory& directory, SteadyTime) {
    return std::tuple(directory.counts().nodes, directory.membership().CountDraining(),
                      directory.inventory().away().size());
  });
  observer.Observe(static_cast<double>(nodes - draining), {"alive"});
  observer.Observe(static_cast<double>(draining), {"draining"});
  observer.Observe(static_cast<double>(lost), {"lost"});
}

void ObserveReplicas(Coordinator& coordinator, otel::Gauge<2>::Observer& observer) {
  const auto counts = coordinator.WithDirectory(
      [](const Directory& directory, SteadyTime) { return directory.inventory().CountByState(); });
  for (const auto& [kind, count] : counts) {
    observer.Observe(static_cast<double>(count),
                     {LocationKindName(kind.first), ReplicaStateName(kind.second)});
  }
}

// Both metrics of the transfers have the same labels.
void ObserveTransfers(Coordinator& coordinator, std::array<double, 3> PlaceTransfers::* values,
                      otel::Gauge<3>::Observer& observer) {
  const std::vector<PlaceTransfers> places = coordinator.WithDirectory(
      [](Directory& directory, SteadyTime now) { return directory.rollups().Transfers(now); });
  for (const PlaceTransfers& of : places) {
    for (size_t i = 0; i < PlaceTransfers::kPercentiles.size(); ++i) {
      observer.Observe((of.*values)[i], {of.place.zone, of.place.rack, PlaceTransfers::kPercentiles[i]});
    }
  }
}

std::vector<Rollout> Rollouts(Coordinator& coordinator) {
  return coordinator.WithDirectory([now = coordinator.wall_now()](Directory& directory, SteadyTime) {
    return directory.rollups().Rollouts(directory.catalog(), directory.inventory(), now);
  });
}

void ObserveFleet(Coordinator* coordinator, std::vector<otel::GaugeRegistration>& gauges) {
  gauges.push_back(metrics::kFleetTransferSeconds.Observe([coordinator](otel::Gauge<3>::Observer& observer) {
    ObserveTransfers(*coordinator, &PlaceTransfers::seconds, observer);
  }));
  gauges.push_back(metrics::kFleetTransferRate.Observe([coordinator](otel::Gauge<3>::Observer& observer) {
    ObserveTransfers(*coordinator, &PlaceTransfers::bytes_per_second, observer);
  }));
  gauges.push_back(metrics::kFleetStragglerSeconds.Observe([coordinator](otel::Gauge<3>::Observer& observer) {
    const std::vector<Straggler> stragglers = coordinator->WithDirectory(
        [](Directory& directory, SteadyTime now) { return directory.rollups().Stragglers(now); });
    for (const Straggler& slow : stragglers) {
      observer.Observe(slow.seconds, {slow.place.zone, slow.place.rack, slow.node});
    }
  }));
  gauges.push_back(metrics::kRolloutNodes.Observe([coordinator](otel::Gauge<2>::Observer& observer) {
    for (const Rollout& rollout : Rollouts(*coordinator)) {
      // The second label says by how many versions the nodes are behind.
      observer.Observe(static_cast<double>(rollout.current), {rollout.key, "0"});
      observer.Observe(static_cast<double>(rollout.one_behind), {rollout.key, "1"});
      observer.Observe(static_cast<double>(rollout.more_behind), {rollout.key, "more"});
    }
  }));
  gauges.push_back(metrics::kRolloutSeconds.Observe([coordinator](otel::Gauge<1>::Observer& observer) {
    for (const Rollout& rollout : Rollouts(*coordinator)) {
      observer.Observe(absl::ToDoubleSeconds(rollout.took), {rollout.key});
    }
  }));
}

}  // namespace

std::vector<otel::GaugeRegistration> ObserveCoordinator(Coordinator* coordinator) {
  // The registrations hold the coordinator's address: they must end before it does.
  std::vector<otel::GaugeRegistration> gauges;
  const auto count = [&](const otel::Gauge<0>& gauge, uint64_t DirectoryCounts::* member) {
    gauges.push_back(gauge.Observe([coordinator, member](otel::Gauge<0>::Observer& observer) {
      observer.Observe(static_cast<double>(Counts(*coordinator).*member));
    }));
  };
  count(metrics::kGlobalArtifacts, &DirectoryCounts::artifacts);
  count(metrics::kGlobalKeys, &DirectoryCounts::keys);
  count(metrics::kGlobalDifferences, &DirectoryCounts::differences);
  count(metrics::kGlobalDifferenceBytes, &DirectoryCounts::difference_bytes);
  count(metrics::kGlobalGrantsActive, &DirectoryCounts::active_grants);
  gauges.push_back(metrics::kGlobalNodes.Observe(
      [coordinator](otel::Gauge<1>::Observer& observer) { ObserveNodes(*coordinator, observer); }));
  gauges.push_back(metrics::kGlobalReplicas.Observe(
      [coordinator](otel::Gauge<2>::Observer& observer) { ObserveReplicas(*coordinator, observer); }));
  ObserveFleet(coordinator, gauges);
  return gauges;
}

}  // namespace tensorcast::global_store
