// Gauges of CPU, memory and GPUs of the process and its host, which are read when metrics are collected.
#pragma once

#include <string>
#include <vector>

#include "otel/api/metrics.h"

namespace tensorcast::otel::sdk {

struct ResourceOptions {
  std::string proc = "/proc";
  std::string nvml = "libnvidia-ml.so.1";  // loaded if possible; without it there are no GPU metrics
};

// The gauges report while the registrations live. A metric from a file that cannot be read is left out.
std::vector<GaugeRegistration> ObserveResources(const ResourceOptions& options = {});

}  // namespace tensorcast::otel::sdk
