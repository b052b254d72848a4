// The node's gauges, read when metrics are collected: pools, leases, sessions, transfers. Observed as long as
// this lives.
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
  std::vector<otel::GaugeRegistration> registrations_;
};

}  // namespace tensorcast::daemon
