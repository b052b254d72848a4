// The node's gauges, read when metrics are collected: pools, leases, sessions, transfers, the disk. Observed
// as long as this lives.
#pragma once

#include <vector>

#include "daemon/service/node_parts.h"
#include "otel/api/metrics.h"

namespace tensorcast::daemon {

class NodeGauges {
 public:
  // `parts` must outlive it.
  explicit NodeGauges(const NodeParts* parts);

 private:
  void ObservePools(const NodeParts* parts);
  void ObserveSessions(const NodeParts* parts);
  void ObserveTransfers(const NodeParts* parts);
  void ObserveDisk(const ArtifactStore* store);

  std::vector<otel::GaugeRegistration> registrations_;
};

}  // namespace tensorcast::daemon
