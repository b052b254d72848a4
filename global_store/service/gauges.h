// The tc_global_store_* gauges: the directory's content, read when metrics are collected.
#pragma once

#include <vector>

#include "global_store/coordinator/coordinator.h"
#include "otel/api/metrics.h"

namespace tensorcast::global_store {

// The gauges report while the registrations live; the coordinator must outlive the registrations.
std::vector<otel::GaugeRegistration> ObserveCoordinator(Coordinator* coordinator);

}  // namespace tensorcast::global_store
