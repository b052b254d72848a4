// The tc_global_store_* gauges: what the directory holds, read when metrics are collected.
#pragma once

#include <vector>

#include "global_store/coordinator/coordinator.h"
#include "otel/api/metrics.h"

namespace tensorcast::global_store {

// They report for as long as the registrations live; the coordinator outlives them.
std::vector<otel::GaugeRegistration> ObserveCoordinator(Coordinator* coordinator);

}  // namespace tensorcast::global_store
